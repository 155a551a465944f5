"""Averages of gathered frames other than the mean over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.batch import ToDecode, decode_batch_add

__all__ = ["MEAN", "Average", "Averaging", "Clip", "divide_by_senders"]

Average = Literal["ranks", "senders"]
"""Over all ranks, or over the ranks that sent an element."""

Clip = Literal["none", "median_norm"]


class Averaging(NamedTuple):
    """The rule by which the ranks' decoded tensors become one.

    Attributes:
        average: "ranks": their sum over the number of ranks. "senders": each element's sum over the
            number of ranks that sent it, 0 if none did; for sparse codecs.
        clip: "median_norm": a tensor whose L2 norm is above the median of the ranks' norms is scaled
            down to it. Of an even number of norms the lower one of the middle two counts.

    Both after Sarfi et al.: "Communication Efficient LLM Pre-training with SparseLoCo", arXiv
    2508.15706, and its code in one-covenant/templar. Deviation: the reference adds 1e-8 to norms.
    """

    average: Average = "ranks"
    clip: Clip = "none"

    def __str__(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in self.changes.items())

    @property
    def changes(self) -> dict[str, str]:
        """The values that are not the defaults, by name."""
        defaults = MEAN._asdict()
        return {name: value for name, value in self._asdict().items() if value != defaults[name]}

    def applied(self, tensor: ToDecode) -> ToDecode:
        """The decoding of a tensor's frames with this averaging; see `divide_by_senders`.

        Raises:
            WireError: a frame is damaged; the message names the rank and the tensor.
        """
        ranks = len(tensor.frames)
        weights = np.ones(ranks)
        if self.clip == "median_norm":
            weights = _clipping([_norm(tensor, rank) for rank in range(ranks)])
        if self.average == "ranks":
            return tensor._replace(weights=(weights / ranks).astype(np.float32))
        counts = np.zeros(tensor.out.size, np.float32)
        return tensor._replace(weights=weights.astype(np.float32), counts=counts)


MEAN = Averaging()
"""The mean over all ranks."""


def divide_by_senders(tensors: Sequence[ToDecode]) -> None:
    """Complete the averages over senders, after decoding."""
    for tensor in tensors:
        if tensor.counts is not None:
            senders = np.maximum(tensor.counts, np.float32(1), out=tensor.counts)
            np.divide(tensor.out, senders, out=tensor.out)


def _norm(tensor: ToDecode, rank: int) -> float:
    """The L2 norm of a rank's tensor."""
    values = np.zeros(tensor.out.size, np.float32)
    one = tensor._replace(frames=[tensor.frames[rank]], out=values, senders=[rank])
    decode_batch_add([one])
    return _core.norm(values)


def _clipping(norms: Sequence[float]) -> npt.NDArray[np.float64]:
    """The factor of each rank; NaN counts as the largest norm, and is not scaled."""
    median = np.sort(norms)[(len(norms) - 1) // 2]
    return np.array([median / norm if norm > median else 1.0 for norm in norms])
