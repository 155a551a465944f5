"""The polar transform, and the order in which decoders decide."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.polar.arguments import BitArray, bits_of, integer, power_of_two

__all__ = ["bit_reversal", "polar_transform"]


def polar_transform(bits: npt.ArrayLike) -> BitArray:
    """The polar transform of each row of ``bits``: x = u G over GF(2), its own inverse.

    G is the n-th Kronecker power of [[1, 0], [1, 1]] (Arikan, "Channel Polarization", IEEE Trans.
    Inf. Theory 55(7), 2009, section VII, without the permutation B_N).

    Args:
        bits: [..., N] of 0 and 1, uint8 or bool; N is a power of two up to 1048576.
    """
    array = bits_of("bits", bits)
    size = power_of_two("the last dimension", array.shape[-1] if array.ndim else 0)
    rows = np.array(array, order="C")
    _core.polar_transform(rows, size.bit_length() - 1)
    return rows


def bit_reversal(N: int) -> npt.NDArray[np.int64]:
    """The bit-reversal permutation of N indices, a power of two: the order of decisions."""
    size = power_of_two("N", integer("N", N))
    reversal = np.zeros(1, np.int64)
    while reversal.size < size:
        reversal = np.concatenate([2 * reversal, 2 * reversal + 1])
    return reversal
