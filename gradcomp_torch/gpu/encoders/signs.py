"""Codecs with scales of the whole tensor: `sign`, `onebit` and `terngrad`; see kernels/signs.py."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from gradcomp_torch.gpu.bucket import EXACT, Mode, divide
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.encoders.dense import Dense
from gradcomp_torch.gpu.encoders.params import Params
from gradcomp_torch.gpu.kernels import signs
from gradcomp_torch.gpu.kernels import table as field

__all__ = ["OneBit", "Sign", "TernGrad"]


class Summed(Dense):
    """A codec with scales of the whole tensor: a pass that sums, and a pass that rounds."""

    CODEC: int
    seeded = False

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        super().__init__(params, sizes, device)
        self.chunks = divide(sizes, tiling.CHUNK, device)
        self.bucket.rows[:, field.FIRST_BLOCK.value] = self.chunks.first
        clip = np.float64(params.get("clip", 0.0))  # type: ignore[arg-type]
        self.bucket.rows[:, field.SCALAR.value] = clip.view(np.int64)
        numbers = 2 * self.chunks.programs
        self.sums = torch.zeros(numbers, dtype=torch.float64, device=device)
        self.counts = torch.zeros(numbers, dtype=torch.int32, device=device)

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        common = {"CODEC": self.CODEC, "CHUNK": tiling.CHUNK, "UNROLL": tiling.UNROLL, **EXACT}
        signs.measure_kernel[(self.chunks.programs,)](
            *(table, self.chunks.tensors, self.sums, self.counts),
            MODE=mode.mode,
            GRAD_TYPE=mode.grad_type,
            ALIGNED=mode.aligned,
            PIECE=tiling.PIECE,
            num_warps=2,  # more would repeat the sums of 16 lanes
            **common,
        )
        signs.scale_kernel[(len(self.bytes),)](table, self.sums, self.counts, num_warps=1, **common)
        self._round((self.bucket.tiles.programs,), table, mode.mode)

    @abstractmethod
    def _round(self, grid: tuple[int], table: torch.Tensor, mode: int) -> None: ...


class Sign(Summed):
    """`sign`: 20 bytes per element with error feedback."""

    CODEC = signs.SIGN.value
    SCALES = 1

    def payload_bytes(self, numel: int) -> int:
        """See `Dense`."""
        return 4 * self.SCALES + -(-numel // 8)

    def _round(self, grid: tuple[int], table: torch.Tensor, mode: int) -> None:
        signs.sign_bits_kernel[grid](
            *(table, self.bucket.tiles.tensors),
            ONE_BIT=self.SCALES == 2,
            MODE=mode,
            TILE=tiling.TILE,
            **EXACT,
        )


class OneBit(Sign):
    """`onebit`: as `sign`, with a scale for each sign."""

    CODEC = signs.ONEBIT.value
    SCALES = 2


class TernGrad(Summed):
    """`terngrad`: 20 bytes per element with error feedback."""

    CODEC = signs.TERNGRAD.value
    seeded = True

    def tile(self, params: Params) -> int:
        """See `Encoder`."""
        return 1280

    def payload_bytes(self, numel: int) -> int:
        """See `Dense`."""
        return 4 + -(-numel // 5)

    def _round(self, grid: tuple[int], table: torch.Tensor, mode: int) -> None:
        signs.ternary_kernel[grid](table, self.bucket.tiles.tensors, MODE=mode, **EXACT)
