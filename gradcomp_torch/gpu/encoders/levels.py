"""Codecs with a scale for each bucket of elements: `qsgd`, `uniform`, `int8` and `int4`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradcomp_torch.gpu.bucket import EXACT, Mode
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.encoders.dense import Dense
from gradcomp_torch.gpu.encoders.params import Params, bucket_size, level_bits
from gradcomp_torch.gpu.kernels import quantize

__all__ = ["Int4", "Int8", "Qsgd", "Uniform"]


class Bucketed(Dense):
    """A codec with a scale for each bucket of elements, and one kernel: its programs hold whole buckets."""

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        self.params = params
        self.size = bucket_size(params)
        self.seeded = params.get("rounding") != "nearest"
        super().__init__(params, sizes, device)

    def tile(self, params: Params) -> int:
        """See `Encoder`."""
        return max(tiling.TILE, self.size)

    def _run(self, table: torch.Tensor, mode: Mode, kernel: Any, **constants: object) -> None:
        kernel[(self.bucket.tiles.programs,)](
            table,
            self.bucket.tiles.tensors,
            BUCKET=self.size,
            GROUP=self.tile(self.params) // self.size,
            MODE=mode.mode,
            GRAD_TYPE=mode.grad_type,
            ALIGNED=mode.aligned,
            **constants,
            **EXACT,
        )


class Levels(Bucketed):
    """A codec with the buckets' scales first, then packed levels of 1, 2, 4 or 8 bits."""

    def payload_bytes(self, numel: int) -> int:
        """See `Dense`."""
        return 4 * -(-numel // self.size) + -(-numel * level_bits(self.params) // 8)


class Qsgd(Levels):
    """`qsgd` with norm=max and packed levels."""

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        levels, bits = self.params["levels"], level_bits(self.params)
        self._run(table, mode, quantize.qsgd_kernel, LEVELS=levels, BITS=bits)


class Uniform(Levels):
    """`uniform` without `rotate` and `clip`, with packed levels."""

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        bits = level_bits(self.params)
        top = float((1 << bits) - 1)
        self._run(table, mode, quantize.uniform_kernel, TOP=top, BITS=bits, RANDOM=self.seeded)


class Int8(Bucketed):
    """`int8`, to nearest or at random."""

    LIMIT = 127.0

    def payload_bytes(self, numel: int) -> int:
        """See `Dense`."""
        return 4 * -(-numel // self.size) + numel

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        self._run(table, mode, quantize.integer_kernel, LIMIT=self.LIMIT, RANDOM=self.seeded)


class Int4(Int8):
    """`int4`: two elements in a byte."""

    LIMIT = 7.0

    def payload_bytes(self, numel: int) -> int:
        """See `Dense`."""
        # Only the last bucket may have an odd size.
        return 4 * -(-numel // self.size) + -(-numel // 2)
