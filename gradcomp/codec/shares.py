"""Shares of a bucket's elements, one for each rank, and of what a `sparse_allreduce` between devices sends.

All sizes follow from the sizes of tensors and their codecs, so messages have the same ones on all ranks.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SHARE_BLOCK", "Shares"]

SHARE_BLOCK = 32
"""Consecutive elements that are in one share, counted from the bucket's first."""

_SPARE = 64
"""Slots of a message besides those that it needs on average; more are seldom used, as what a rank keeps is densest in
its own share."""


class Shares(NamedTuple):
    """The division of a bucket, whose tensors are laid out one after the other.

    Block ``b`` of `SHARE_BLOCK` elements belongs to rank ``(b + b // ranks) % ranks``: blocks are dealt out in turn,
    and each turn begins with another rank, so that no column of a matrix falls to one rank.

    Attributes:
        numel: elements of all tensors.
        kept: of these, the elements that the codecs of a rank keep, at most.
        ranks: number of ranks.
    """

    numel: int
    kept: int
    ranks: int

    @property
    def size(self) -> int:
        """Elements of a share; the last turn is filled up."""
        return -(-self.numel // (SHARE_BLOCK * self.ranks)) * SHARE_BLOCK

    @property
    def slots(self) -> int:
        """Elements of a share that a rank can send to its owner."""
        return min(self.size, self.kept, self.chosen + _SPARE)

    @property
    def chosen(self) -> int:
        """Sums of a share that its owner sends to all ranks."""
        return -(-self.kept // self.ranks)
