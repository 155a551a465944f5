"""Indices of kept elements, packed for other devices: kernels/packed.py.

A packed list has a size that follows from its tensor's and the number of indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gradcomp_torch.gpu.bucket import spread
from gradcomp_torch.gpu.kernels import packed as kernels

__all__ = ["WORDS", "Packed", "packed_size", "unpack_table"]

WORDS = 256
"""Upper words of a program that unpacks."""


class Packed(NamedTuple):
    """The size of a packed list.

    Attributes:
        low_bits: lower bits of each index.
        upper: 32-bit words of upper bits.
        lower: 32-bit words of lower bits.
    """

    low_bits: int
    upper: int
    lower: int

    @property
    def words(self) -> int:
        """All words."""
        return self.upper + self.lower


def packed_size(numel: int, count: int) -> Packed:
    """The size of ``count`` indices of a tensor; about 2 bits and those of numel / count for each."""
    low_bits = max(numel // max(count, 1), 1).bit_length() - 1
    return Packed(low_bits, -(-(count + (numel >> low_bits) + 1) // 32), -(-count * low_bits // 32))


def unpack_table(
    sizes: Sequence[Packed],
    counts: Sequence[int],
    words: Sequence[int],
    indices: Sequence[int],
    partial: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The table of a launch that unpacks lists, and the list of each program.

    Args:
        counts: of indices.
        words, indices: pointers to each list, and to memory for its indices.
        partial: pointer to memory for an int32 for each program.
    """
    rows = np.zeros((len(sizes), kernels.FIELDS.value), np.int64)
    upper = [size.upper for size in sizes]
    programs, first = spread(upper, WORDS)
    rows[:, kernels.WORDS_AT.value] = words
    rows[:, kernels.INDICES_AT.value] = indices
    rows[:, kernels.COUNT.value] = counts
    rows[:, kernels.LOW_BITS.value] = [size.low_bits for size in sizes]
    rows[:, kernels.UPPER_WORDS.value] = upper
    rows[:, kernels.FIRST.value] = first
    rows[:, kernels.COUNTS_AT.value] = partial + 4 * first
    return rows, programs
