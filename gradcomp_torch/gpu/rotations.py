"""How a rotation divides tensors: into blocks, and a rest where they do not cover a tensor.

csrc/coding/rotation.hpp, and for kernels kernels/rotate.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gradcomp.device_api import rotation_of

__all__ = ["WARPS", "Rotations"]

WARPS = 8
"""Of a program that rotates a block: its elements fit into the registers."""


class Rotations:
    """Rotations of tensors; every attribute has a number for each.

    Attributes:
        log2: binary logarithm of a block's elements.
        factors: of an element, as bits of float32.
        blocks: whole blocks.
        rests: 1 where blocks do not cover the tensor, else 0.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        numel = np.asarray(sizes, np.int64)
        rotations = [rotation_of(n) for n in sizes]
        self.log2: npt.NDArray[np.int64] = np.array([log2 for log2, _ in rotations], np.int64)
        factors = np.array([factor for _, factor in rotations], np.float32)
        self.factors: npt.NDArray[np.int32] = factors.view(np.int32)
        self.blocks: npt.NDArray[np.int64] = numel >> self.log2
        self.rests: npt.NDArray[np.int64] = (numel > self.blocks << self.log2).astype(np.int64)
