"""Gossip algorithms by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradcomp.errors import GradcompError
from gradcomp.gossip.base import Gossip
from gradcomp.gossip.coded import Choco, DeepSqueeze, QuantizedPushSum
from gradcomp.gossip.dense import PushSum, SimpleGossip
from gradcomp.gossip.moniqua import Moniqua
from gradcomp.gossip.powergossip import PowerGossip
from gradcomp.gossip.topology import Topology

__all__ = ["ALGORITHMS", "make_gossip"]

_DENSE: dict[str, Any] = {"gossip": SimpleGossip, "push_sum": PushSum}
_COMPRESSED: dict[str, Any] = {
    "powergossip": PowerGossip,
    "choco": Choco,
    "quantized_push_sum": QuantizedPushSum,
    "deepsqueeze": DeepSqueeze,
    "moniqua": Moniqua,
}

ALGORITHMS = (*_DENSE, *_COMPRESSED)
"""Names for `make_gossip`."""


def make_gossip(
    name: str,
    topology: Topology,
    rank: int,
    shapes: Mapping[str, Sequence[int]],
    **options: Any,
) -> Gossip:
    """One rank's part of an algorithm.

    Args:
        name: one of `ALGORITHMS`.
        topology, rank: as in the algorithm's class.
        shapes: the tensors' shapes by name; see `Layout`.
        options: keywords of the algorithm's class, such as ``gamma``.

    Raises:
        GradcompError: ``name`` or an option is unknown.
        ValueError: an option is out of its range.
        TopologyError: the algorithm does not take the topology.
    """
    if name not in ALGORITHMS:
        raise GradcompError(
            f"no gossip algorithm is called '{name}'; known: {', '.join(ALGORITHMS)}"
        )
    try:
        if name in _DENSE:
            dense: Gossip = _DENSE[name](topology, rank, **options)
            return dense
        compressed: Gossip = _COMPRESSED[name](topology, rank, shapes, **options)
        return compressed
    except TypeError as error:
        raise GradcompError(f"'{name}' does not take these options: {error}") from error
