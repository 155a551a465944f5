"""Codecs that send all elements, a pass each: correct, round, subtract."""

import triton
import triton.language as tl

from torch_compressors.gpu.kernels.bits import (
    bfloat_bits,
    float_from_bfloat,
    float_from_half,
    half_bits,
    zero_nonfinite,
)
from torch_compressors.gpu.kernels.correct import PLAIN, corrected
from torch_compressors.gpu.kernels.table import (
    FIRST_TILE,
    NUMEL,
    OUT,
    RESIDUAL,
    floats,
    row_of,
    whole,
)


@triton.jit
def half_kernel(
    table,
    tensors,
    BF16: tl.constexpr,
    SATURATE: tl.constexpr,
    MODE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):
    """fp16 and bf16, as csrc/codecs/plain/half.cpp. 14 bytes per element with feedback, 6 without."""
    tile = tl.program_id(0)
    row = row_of(table, tl.load(tensors + tile))
    n = whole(row, NUMEL)
    begin = (tile - whole(row, FIRST_TILE)) * TILE
    if begin + TILE <= n:
        _half(row, begin, n, BF16, SATURATE, MODE, ALIGNED, TILE, True)
    else:
        _half(row, begin, n, BF16, SATURATE, MODE, ALIGNED, TILE, False)


@triton.jit
def _half(
    row,
    begin,
    n,
    BF16: tl.constexpr,
    SATURATE: tl.constexpr,
    MODE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    FULL: tl.constexpr,
):
    i = begin + tl.arange(0, TILE)
    if FULL:  # a constant, so that accesses are vectors
        ok = tl.full((TILE,), True, tl.int1)
    else:
        ok = i < n
    x = corrected(row, i, ok, MODE, True, True, ALIGNED)
    if BF16:
        half = bfloat_bits(x)
        decoded = float_from_bfloat(half)
    else:
        half = half_bits(x, SATURATE)
        decoded = float_from_half(half)
    out = tl.multiple_of(tl.load(row + OUT), 16).to(tl.pointer_type(tl.uint16))
    tl.store(out + i, half, mask=ok)
    if MODE != PLAIN:
        tl.store(floats(row, RESIDUAL, ALIGNED) + i, zero_nonfinite(x - decoded), mask=ok)
