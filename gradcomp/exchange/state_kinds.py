"""Kinds of state that a rank keeps from step to step: by memories, codecs and algorithms."""

from __future__ import annotations

from collections.abc import Hashable

from gradcomp.codec.codec import get_codec
from gradcomp.codec.spec import Spec
from gradcomp.exchange.select import ALGORITHMS

__all__ = ["REPLICATED_KINDS", "STATE_KINDS", "state_of"]

REPLICATED_KINDS = (
    *(kind for algorithm in ALGORITHMS.values() for kind in algorithm.replicated_kinds),
    "basis",
)
"""Kinds of state that are equal on all ranks."""

STATE_KINDS = ("residual", "momentum", *REPLICATED_KINDS, "carried")
"""All kinds: keys of `Pipeline.state_dict`."""


def state_of(spec: Spec) -> dict[str, Hashable]:
    """The kinds of state that a spec keeps.

    Another spec can take over the kinds for which it has an equal value here.
    """
    kinds: dict[str, Hashable] = {}
    memory, algorithm = spec.memory, spec.algorithm
    if memory is not None:
        if memory.name != "signum":
            kinds["residual"] = None
        if memory.name != "residual":
            kinds["momentum"] = memory.name
    if algorithm is not None:
        kinds.update(ALGORITHMS[algorithm.name].state_of(algorithm.params))
        return kinds
    codec = get_codec(spec.first_codec)
    if codec.carried:
        kinds["carried"] = codec.name
    if "learns" in codec.caps:
        kinds["basis"] = codec.name
    return kinds
