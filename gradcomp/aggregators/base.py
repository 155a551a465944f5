"""What every aggregator offers."""

from __future__ import annotations

from typing import Protocol

from gradcomp.arrays import FloatArray
from gradcomp.rounds import Round, TensorKey

__all__ = ["Aggregator"]


class Aggregator(Protocol):
    """One exchange pattern with its codec and memory, for any number of tensors."""

    linear: bool
    """The round is a single `AllReduce` whose reply may be scaled: an engine may leave the request
    to its own all-reduce (and fuse it with others), and may sum instead of averaging."""

    def round(self, grad: FloatArray, key: TensorKey, step: int) -> Round:
        """Average one tensor over the ranks.

        Args:
            grad: this rank's gradient, C-contiguous; read before the first request is yielded.
            key: which tensor.
            step: how often this tensor has been averaged before; the same on every rank.

        Returns:
            A generator that returns the average, flat float32.
        """
        ...
