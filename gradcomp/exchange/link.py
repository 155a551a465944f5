"""Bytes that pass a rank's link in an exchange: the one place of these formulas.

A link carries both directions at once, so the direction with more bytes counts. Assumed are rings
for all-reduces and all-gathers, and direct messages for all-to-alls. All ranks send alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

__all__ = ["costs_more", "dense_link_bytes", "link_bytes", "link_turns"]


_MORE = 1.01
"""Headers of small frames alone are not a reason for a warning."""


# Of the bytes that a rank hands over, by kind; counting a request must cost nearly nothing.
_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "token": lambda ranks: 2 * (ranks - 1) / ranks,  # of Horovod: a small all-reduce
    "allgather": lambda ranks: ranks - 1,
    "check": lambda ranks: ranks - 1,  # a broadcast in which every rank gives its text
    "alltoall": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: min(ranks - 1, 1),
    "push": lambda ranks: 1,  # to BytePS' servers, which the average leaves by the other direction
}


def costs_more(nbytes: float, dense: float) -> bool:
    """Whether more bytes pass a link than the ``dense`` ones of no compression."""
    return nbytes > _MORE * dense


def link_bytes(kind: str, nbytes: float, ranks: int) -> float:
    """Bytes that pass a rank's link in one request.

    Args:
        kind: of a request, or of another count in `gradcomp.runtime.measure.stats.Stats.sent_bytes`. A
            request inside a node passes no link.
        nbytes: bytes that the rank hands over.
        ranks: number of ranks that take part; of an exchange between nodes, the number of nodes.
    """
    return _factor(kind, ranks) * nbytes


@cache
def _factor(kind: str, ranks: int) -> float:
    """Bytes that pass a rank's link for each byte that it hands over."""
    return 0.0 if kind.startswith("node ") else _FACTORS[kind](ranks)


def link_turns(kind: str, ranks: int) -> int:
    """Messages of a request that wait for one another, each for the link's latency.

    Args:
        kind, ranks: as in `link_bytes`.
    """
    if kind.startswith("node "):
        return 0
    turns = {"allreduce": 2 * (ranks - 1), "allgather": ranks - 1}
    return turns.get(kind, min(ranks - 1, 1))


def dense_link_bytes(nbytes: float, ranks: int, scatters: bool = False) -> float:
    """Bytes that pass a rank's link when gradients of ``nbytes`` are all-reduced uncompressed.

    Args:
        scatters: they are reduce-scattered instead, the first half of an all-reduce.
    """
    return link_bytes("alltoall" if scatters else "allreduce", nbytes, ranks)
