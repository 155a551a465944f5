"""Comparison of settings and progress of all gossiping ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any

import torch

from gradcomp.adapter_api import (
    check_digests,
    check_equal,
    digest_parameters,
    read_object,
)
from gradcomp.errors import GradcompError, ProtocolError
from gradcomp.gossip import Topology
from gradcomp_torch.parameters import parameter_bytes
from torch_compressors.gloo.gather import gather_texts
from torch_compressors.gossip.groups import GossipGroups
from torch_compressors.gossip.transport import naming_the_lost

__all__ = ["agree", "check_equal_tensors", "setting_text"]

_LONGEST = 100


def agree(
    values_of: Callable[[], Mapping[str, Any]],
    groups: GossipGroups,
    where: str,
    leaders: int = 1,
) -> None:
    """Compare values over all ranks, each of which must call this.

    Args:
        values_of: returns this rank's values by name, for JSON; its errors are raised on all ranks.
        groups: a group of all ranks.
        where: the caller, for messages.
        leaders: of each ``leaders`` consecutive ranks, only the first one counts for values that others
            give as None.

    Raises:
        GradcompError: the error of ``values_of`` on this rank.
        ProtocolError: the error of another rank, or values differ; the message names the ranks.
        PeerError: a rank has died, or does not call this in time.
    """
    problem: GradcompError | None = None
    values: Mapping[str, Any] = {}
    try:
        values = values_of()
    except GradcompError as error:
        problem = error
    text = json.dumps({"values": values, "problem": "" if problem is None else str(problem)})
    with naming_the_lost(where), groups.request() as group:
        texts = gather_texts(text, group)
    if problem is not None:
        raise problem
    rows = [read_object(text, rank) for rank, text in enumerate(texts)]
    problems = [f"  rank {n}: {row['problem']}" for n, row in enumerate(rows) if row.get("problem")]
    if problems:
        raise ProtocolError("\n".join([f"{where}: another rank refuses its arguments:", *problems]))
    of_ranks = [_values(row, rank) for rank, row in enumerate(rows)]
    for rank, settings in enumerate(of_ranks):
        first = of_ranks[rank - rank % leaders]
        settings.update(
            {name: first.get(name) for name, value in settings.items() if value is None}
        )
    check_equal(
        of_ranks,
        f"{where}: the ranks do not gossip alike",
        "give every rank the same model and arguments, and states of the same step",
    )


def _values(row: Mapping[str, Any], rank: int) -> dict[str, Any]:
    values = row.get("values")
    if not isinstance(values, dict):
        raise ProtocolError(
            f"rank {rank} does not tell its settings: see whether all ranks run the same version"
        )
    return values


def check_equal_tensors(
    named: Iterable[tuple[str, torch.Tensor]],
    groups: GossipGroups,
    when: str,
    *,
    first: int = 0,
) -> None:
    """Compare tensors, bit for bit, over the ranks of a group, each of which must call this.

    Args:
        groups: this rank's group.
        when: the time, for the message.
        first: the group's first rank in the job; the others follow it.

    Raises:
        ProtocolError: a tensor differs; the message names the first one, the time and the ranks.
    """
    text = json.dumps({"digests": digest_parameters(parameter_bytes(named))})
    with groups.request() as group:
        texts = gather_texts(text, group)
    rows = [read_object(row, rank) for rank, row in enumerate(texts, first)]
    check_digests(rows, when, first=first)


def setting_text(value: Any) -> str:
    """A short text of an argument, equal on ranks with equal arguments."""
    if isinstance(value, Topology):
        return f"{value.name} {value.digest}"
    if isinstance(value, Mapping):
        items = sorted((str(key), setting_text(item)) for key, item in value.items())
        text = "{" + ", ".join(f"{key}: {item}" for key, item in items) + "}"
    else:
        text = str(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... {blake2b(text.encode(), digest_size=8).hexdigest()}"
