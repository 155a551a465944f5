"""Bytes that pass a rank's link in an exchange: the one place of these formulas.

A link carries both directions at once, so the direction with more bytes counts. Assumed are rings
for all-reduces and all-gathers, and direct messages for all-to-alls. All ranks send alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["costs_more", "dense_link_bytes", "gather_limit", "link_bytes", "pattern_link_bytes"]


_MORE = 1.01
"""Headers of small frames alone are no reason for a warning."""


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
        kind: of a request, or of another count in `gradcomp.runtime.stats.Stats.sent_bytes`. A
            request inside a node passes no link.
        nbytes: bytes that the rank hands over.
        ranks: number of ranks that take part; of an exchange between nodes, the number of nodes.
    """
    return 0.0 if kind.startswith("node ") else _FACTORS[kind](ranks) * nbytes


def dense_link_bytes(nbytes: float, ranks: int, scatters: bool = False) -> float:
    """Bytes that pass a rank's link when gradients of ``nbytes`` are all-reduced uncompressed.

    Args:
        scatters: they are reduce-scattered instead, the first half of an all-reduce.
    """
    return link_bytes("alltoall" if scatters else "allreduce", nbytes, ranks)


def pattern_link_bytes(pattern: str, nbytes: float, ranks: int) -> float:
    """Bytes that pass a rank's link in an exchange pattern.

    Args:
        pattern: "dense", "reduce", "gather", "sra" or "sparse_allreduce".
        nbytes: bytes of one rank's payloads.
        ranks: as in `link_bytes`.
    """
    if pattern in ("dense", "reduce"):
        return link_bytes("allreduce", nbytes, ranks)
    if pattern == "gather":
        return link_bytes("allgather", nbytes, ranks)
    # Parts to their owners, then each owner's averages to all.
    return link_bytes("alltoall", nbytes, ranks) + link_bytes("allgather", nbytes / ranks, ranks)


def gather_limit(dense: float, nbytes: float) -> int:
    """Most ranks with which a gather of ``nbytes`` does not cost more than a dense all-reduce.

    Args:
        dense: bytes of the uncompressed gradient.
    """
    return math.floor(_MORE * 2 * dense / nbytes)
