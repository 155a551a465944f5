"""`rotate|uniform`: see kernels/rotate.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gradcomp.device_api import clip_of_normal
from gradcomp_torch.gpu.bucket import EXACT, VECTOR_BYTES, Mode, divide
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.encoders.dense import Dense
from gradcomp_torch.gpu.encoders.params import Params, level_bits, number
from gradcomp_torch.gpu.kernels import correct, rotate
from gradcomp_torch.gpu.kernels import table as field
from gradcomp_torch.gpu.rotations import WARPS, Rotations

__all__ = ["RotatedUniform"]


class RotatedUniform(Dense):
    """`rotate|uniform` with packed levels: kernels/rotate.py.

    The host launches 3 kernels and 1 more with error feedback, and up to 2 for rests, whatever the number
    of tensors. 40.5 bytes per element with error feedback and 4 bits.
    """

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        self.bits = level_bits(params)
        self.random = params["rounding"] == "stochastic"
        rotations = Rotations(sizes)
        groups: list[int] = (rotations.blocks + rotations.rests).tolist()
        self.groups = dict(zip(sizes, groups, strict=True))
        super().__init__(params, sizes, device)
        self.blocks = divide(rotations.blocks, 1, device)
        self.rests = divide(rotations.rests, 1, device)
        self.of_groups = divide(groups, 1, device)
        rooms = [-(-n // VECTOR_BYTES) * VECTOR_BYTES for n in sizes]
        self.rotated = torch.zeros(sum(rooms), dtype=torch.float32, device=device)
        begins = np.cumsum(rooms) - rooms
        rows = self.bucket.rows
        rows[:, field.LOG2.value] = rotations.log2
        rows[:, field.FIRST_BLOCK.value] = self.blocks.first
        rows[:, field.FIRST_GROUP.value] = self.of_groups.first
        rows[:, field.FACTOR.value] = rotations.factors
        rows[:, field.SCALAR.value] = np.float64(self._clip(params)).view(np.int64)
        rows[:, field.ROTATED.value] = self.rotated.data_ptr() + 4 * begins

    def tile(self, params: Params) -> int:
        """See `Encoder`."""
        return int(rotate.BLOCK.value)

    def _clip(self, params: Params) -> float:
        """The outermost level in root mean squares of the group."""
        if "clip" in params:
            return number(params, "clip")
        return clip_of_normal(self.bits, self.random)

    def payload_bytes(self, numel: int) -> int:
        """See `Dense`."""
        return 4 * self.groups[numel] + -(-numel * self.bits // 8)

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        self.rotate(table, mode)
        self._round(table, mode)
        if mode.mode != correct.PLAIN.value:
            self._subtract(table, mode)

    def rotate(self, table: torch.Tensor, mode: Mode) -> None:
        """Launch the correction and rotation alone: 8 bytes per element without error feedback."""
        kinds = {"MODE": mode.mode, "GRAD_TYPE": mode.grad_type, "ALIGNED": mode.aligned}
        common = {**kinds, "num_warps": WARPS, **EXACT}
        blocks, rests = self.blocks, self.rests
        rotate.rotate_kernel[(blocks.programs,)](table, blocks.tensors, REST=False, **common)
        if rests.programs:
            rotate.rotate_kernel[(rests.programs,)](table, rests.tensors, REST=True, **common)

    def _round(self, table: torch.Tensor, mode: Mode) -> None:
        top = float((1 << self.bits) - 1)
        rotate.scales_kernel[(self.of_groups.programs,)](
            table, self.of_groups.tensors, TOP=top, UNROLL=tiling.UNROLL, num_warps=1, **EXACT
        )
        rotate.levels_kernel[(self.bucket.tiles.programs,)](
            table,
            self.bucket.tiles.tensors,
            TOP=top,
            BITS=self.bits,
            RANDOM=self.random,
            MODE=mode.mode,
            num_warps=2
            * WARPS,  # with more elements in each, too few threads are on the GPU at once
            **EXACT,
        )

    def _subtract(self, table: torch.Tensor, mode: Mode) -> None:
        back = rotate.rotate_back_kernel
        common = {"ALIGNED": mode.aligned, "num_warps": WARPS, **EXACT}
        if self.rests.programs:
            back[(self.rests.programs,)](table, self.rests.tensors, REST=True, **common)
        back[(self.blocks.programs,)](table, self.blocks.tensors, REST=False, **common)
