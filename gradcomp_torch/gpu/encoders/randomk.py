"""`randomk` with values=fp32: see kernels/places.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gradcomp.device_api import kept_count
from gradcomp_torch.gpu.bucket import EXACT, Mode, divide
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.encoders.dense import Dense
from gradcomp_torch.gpu.encoders.params import Params
from gradcomp_torch.gpu.kernels import correct, places
from gradcomp_torch.gpu.kernels import table as field

__all__ = ["RandomK"]


class RandomK(Dense):
    """`randomk` with values=fp32: 12 bytes per element with error feedback, else O(k)."""

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        self.kept = [kept_count(params, n) for n in sizes]
        self.sized = dict(zip(sizes, self.kept, strict=True))
        super().__init__(params, sizes, device)
        self.unbiased = bool(params["unbiased"])
        self.blocks = divide(self.kept, tiling.BLOCK, device)
        self.spans = divide(sizes, tiling.SPAN * tiling.TILE, device)
        rows = self.bucket.rows
        rows[:, field.KEPT.value] = self.kept
        rows[:, field.FIRST_BLOCK.value] = self.blocks.first
        rows[:, field.FIRST_SPAN.value] = self.spans.first
        for row, n, k in zip(rows, sizes, self.kept, strict=True):
            if k:
                # Distance between parts in 2^-32 places.
                row[field.STRIDE.value] = ((n << 32) + k - 1) // k
                row[field.SCALAR.value] = np.float64(n / k).view(np.int64)
        self.flags = torch.zeros(len(sizes), dtype=torch.int32, device=device)

    def payload_bytes(self, numel: int) -> int:
        """See `Dense`."""
        return 4 * self.sized[numel]

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        tiles = (self.bucket.tiles.programs,)
        of = (table, self.bucket.tiles.tensors, self.flags)
        common = {"MODE": mode.mode, "ALIGNED": mode.aligned, "TILE": tiling.TILE}
        feeds_back = mode.mode != correct.PLAIN.value
        if feeds_back:
            self.flags.zero_()
            correct.correct_kernel[tiles](*of, GRAD_TYPE=mode.grad_type, **common, **EXACT)
        places.gather_kernel[(self.blocks.programs,)](
            table,
            self.blocks.tensors,
            UNBIASED=self.unbiased,
            MODE=mode.mode,
            MASKING=mode.masking,
            B=tiling.BLOCK,
            **EXACT,
        )
        if feeds_back:
            correct.zero_kernel[(self.spans.programs,)](
                *(table, self.spans.tensors, self.flags),
                FLAGS=1,
                FLAG=0,
                SPAN=tiling.SPAN,
                **common,
                **EXACT,
            )
