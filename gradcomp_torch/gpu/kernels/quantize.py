"""Codecs that send all elements, a pass each: correct, round, subtract."""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import (
    INF,
    NAN,
    bfloat_bits,
    bits_of,
    float_from_bfloat,
    float_from_half,
    float_of,
    half_bits,
    magnitude,
    zero_nonfinite,
)
from gradcomp_torch.gpu.kernels.correct import PLAIN, corrected
from gradcomp_torch.gpu.kernels.random import rounding_words
from gradcomp_torch.gpu.kernels.table import (
    FIRST_TILE,
    NUMEL,
    OUT,
    RESIDUAL,
    STREAM,
    elements,
    floats,
    row_of,
    whole,
)
from gradcomp_torch.gpu.kernels.value_types import BF16, FP32


@triton.jit
def floats_kernel(
    table,
    tensors,
    TYPE: tl.constexpr,
    SATURATE: tl.constexpr,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):
    """identity, fp16 and bf16, as csrc/codecs/plain. 14 bytes per element with feedback, 6 without; 16 and 8
    of identity.
    """
    tile = tl.program_id(0)
    row = row_of(table, tl.load(tensors + tile))
    n = whole(row, NUMEL)
    begin = (tile - whole(row, FIRST_TILE)) * TILE
    if begin + TILE <= n:
        _floats(row, begin, n, TYPE, SATURATE, MODE, GRAD_TYPE, ALIGNED, TILE, True)
    else:
        _floats(row, begin, n, TYPE, SATURATE, MODE, GRAD_TYPE, ALIGNED, TILE, False)


@triton.jit
def _floats(
    row,
    begin,
    n,
    TYPE: tl.constexpr,
    SATURATE: tl.constexpr,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    FULL: tl.constexpr,
):
    i = begin + tl.arange(0, TILE)
    if FULL:  # a constant, so that accesses are vectors
        ok = tl.full((TILE,), True, tl.int1)
    else:
        ok = i < n
    x = corrected(row, i, ok, MODE, GRAD_TYPE, True, True, ALIGNED)
    if TYPE == FP32:
        tl.store(tl.multiple_of(floats(row, OUT) + i, 16), x, mask=ok)
        decoded = x
    else:
        if TYPE == BF16:
            half = bfloat_bits(x)
            decoded = float_from_bfloat(half)
        else:
            half = half_bits(x, SATURATE)
            decoded = float_from_half(half)
        out = tl.load(row + OUT).to(tl.pointer_type(tl.uint16)) + i
        tl.store(tl.multiple_of(out, 16), half, mask=ok)
    if MODE != PLAIN:
        tl.store(elements(row, RESIDUAL, i, ALIGNED), zero_nonfinite(x - decoded), mask=ok)


@triton.jit
def _spread(of_bucket, GROUP: tl.constexpr, BUCKET: tl.constexpr):
    """A bucket's number for each of its elements."""
    wide = tl.broadcast_to(of_bucket[:, None], (GROUP, BUCKET))
    return tl.reshape(wide, (GROUP * BUCKET,))


@triton.jit
def store_symbols(to, symbol, ok, begin, n, BITS: tl.constexpr, TILE: tl.constexpr):
    """Packs symbols of BITS bits from the bytes at the address `to` on, the first ones lowest."""
    EACH: tl.constexpr = 8 // BITS
    place = BITS * tl.arange(0, EACH)
    many = tl.reshape(tl.where(ok, symbol, 0), (TILE // EACH, EACH))
    packed = tl.sum(many << place[None, :], axis=1)
    byte = begin // EACH + tl.arange(0, TILE // EACH)
    symbols = to.to(tl.pointer_type(tl.uint8)) + byte
    tl.store(symbols, packed.to(tl.uint8), mask=byte < (n + EACH - 1) // EACH)


@triton.jit
def qsgd_kernel(
    table,
    tensors,
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    BUCKET: tl.constexpr,
    GROUP: tl.constexpr,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """qsgd of a norm max, as csrc/codecs/quantize/dithered_codec.cpp; BITS of a level divide 8.

    A program holds whole buckets. 13 bytes per element with feedback and 8 bits, 5 without feedback.
    """
    TILE: tl.constexpr = BUCKET * GROUP
    tile = tl.program_id(0)
    row = row_of(table, tl.load(tensors + tile))
    n = whole(row, NUMEL)
    begin = (tile - whole(row, FIRST_TILE)) * TILE
    i = begin + tl.arange(0, TILE)
    ok = i < n
    x = corrected(row, i, ok, MODE, GRAD_TYPE, True, True, ALIGNED)
    largest = tl.max(tl.reshape(tl.where(ok, magnitude(x), 0), (GROUP, BUCKET)), axis=1)
    # Just below the largest float, so that levels decode to finite numbers.
    norm = float_of(tl.where(largest >= INF, NAN, tl.minimum(largest, 0x7F7FFFF8)))
    norm = tl.where(norm < 1.262177448353619e-29, 0.0, norm)  # 2^-96; a NaN stays
    usable = norm > 0
    top = tl.full((GROUP,), LEVELS * 16777216.0, tl.float32)
    scale = tl.where(usable, tl.div_rn(top, tl.where(usable, norm, 1.0)), 0.0)
    unit = tl.div_rn(norm, tl.full((GROUP,), LEVELS, tl.float32))
    out = tl.load(row + OUT)
    buckets = (n + BUCKET - 1) // BUCKET
    bucket = begin // BUCKET + tl.arange(0, GROUP)
    norms = out.to(tl.pointer_type(tl.float32))
    tl.store(norms + bucket, norm, mask=bucket < buckets)
    scale = _spread(scale, GROUP, BUCKET)
    unit = _spread(unit, GROUP, BUCKET)
    live = scale > 0
    words = rounding_words(tl.load(row + STREAM), begin, TILE)
    fixed = (tl.where(live, tl.abs(x), 0.0) * scale).to(tl.int32).to(tl.uint32)
    level = tl.minimum(((fixed + (words >> 8)) >> 24).to(tl.int32), LEVELS)
    negative = (bits_of(x) >> 31).to(tl.int32)
    symbol = tl.where(live, tl.maximum(2 * level - negative, 0), 0)
    store_symbols(out + 4 * buckets, symbol, ok, begin, n, BITS, TILE)
    if MODE != PLAIN:
        decoded = unit * ((symbol >> 1) ^ -(symbol & 1)).to(tl.float32)
        tl.store(elements(row, RESIDUAL, i, ALIGNED), zero_nonfinite(x - decoded), mask=ok)


@triton.jit
def integer_kernel(
    table,
    tensors,
    LIMIT: tl.constexpr,
    RANDOM: tl.constexpr,
    BUCKET: tl.constexpr,
    GROUP: tl.constexpr,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """int8 (LIMIT 127) and int4 (7), as csrc/codecs/quantize/int8_int4.cpp.

    A program holds whole buckets. 13 bytes per element with feedback for int8, 12.5 for int4.
    """
    TILE: tl.constexpr = BUCKET * GROUP
    tile = tl.program_id(0)
    row = row_of(table, tl.load(tensors + tile))
    n = whole(row, NUMEL)
    begin = (tile - whole(row, FIRST_TILE)) * TILE
    i = begin + tl.arange(0, TILE)
    ok = i < n
    x = corrected(row, i, ok, MODE, GRAD_TYPE, True, True, ALIGNED)
    largest = tl.max(tl.reshape(tl.where(ok, magnitude(x), 0), (GROUP, BUCKET)), axis=1)
    finite = largest < INF
    limit = tl.full((GROUP,), LIMIT, tl.float32)
    scale = tl.div_rn(float_of(tl.where(finite, largest, 0)), limit)
    # The quotient may be rounded up; the largest level must not decode to Inf.
    scale = tl.where(magnitude(scale * limit) >= INF, float_of(bits_of(scale) - 1), scale)
    usable = scale >= 1.1754943508222875e-38  # a smaller scale has no finite inverse
    ones = tl.full((GROUP,), 1.0, tl.float32)
    inverse = tl.where(usable, tl.div_rn(ones, tl.where(usable, scale, 1.0)), 0.0)
    nan = float_of(tl.full((GROUP,), NAN, tl.uint32))
    scale = tl.where(finite, tl.where(usable, scale, 0.0), nan)
    inverse = _spread(inverse, GROUP, BUCKET)
    live = inverse > 0
    scaled = tl.where(live, x, 0.0) * inverse
    scaled = tl.minimum(tl.maximum(scaled, -LIMIT), LIMIT)
    if RANDOM:
        words = rounding_words(tl.load(row + STREAM), begin, TILE)
        fixed = (scaled * 16777216.0).to(tl.int32).to(tl.uint32)
        level = ((fixed + (words >> 8)) >> 24).to(tl.int8).to(tl.int32)
    else:
        # Adding 1.5 * 2^23 leaves the nearest whole number in the lower bits.
        level = bits_of(scaled + 12582912.0).to(tl.int8).to(tl.int32)
    level = tl.where(live, level, 0)
    PACKED: tl.constexpr = 1 if LIMIT > 7 else 2
    STRIDE: tl.constexpr = 4 + BUCKET // PACKED
    bucket = begin // BUCKET + tl.arange(0, GROUP)
    at = tl.load(row + OUT) + bucket.to(tl.int64) * STRIDE
    tl.store(at.to(tl.pointer_type(tl.float32)), scale, mask=bucket * BUCKET < n)
    codes = tl.reshape(tl.where(ok, level, 0), (GROUP, BUCKET))
    to = tl.arange(0, BUCKET // PACKED)
    end = (n - bucket * BUCKET + PACKED - 1) // PACKED
    if PACKED == 2:
        low, high = tl.split(tl.reshape(codes, (GROUP, BUCKET // 2, 2)))
        codes = (low & 0xF) | ((high & 0xF) << 4)
    bytes_at = (at + 4).to(tl.pointer_type(tl.uint8))[:, None] + to[None, :]
    tl.store(bytes_at, codes.to(tl.uint8), mask=to[None, :] < end[:, None])
    if MODE != PLAIN:
        decoded = _spread(scale, GROUP, BUCKET) * level.to(tl.float32)
        tl.store(elements(row, RESIDUAL, i, ALIGNED), zero_nonfinite(x - decoded), mask=ok)


@triton.jit
def half_steps(outermost, TOP: tl.constexpr):
    """Half the distance between levels, for each group: TOP + 1 levels reach to its ``outermost``."""
    half_step = tl.div_rn(outermost, tl.full(outermost.shape, TOP, tl.float32))
    beyond = half_step * TOP > outermost
    half_step = tl.where(beyond, float_of(bits_of(half_step) - 1), half_step)
    # A smaller step has no finite inverse.
    return tl.where(half_step >= 1.1754943508222875e-38, half_step, 0.0)


@triton.jit
def uniform_symbols(
    x, inverse, stream, begin, TOP: tl.constexpr, RANDOM: tl.constexpr, TILE: tl.constexpr
):
    """Numbers of the levels of elements from ``begin`` on; 0 where ``inverse``, of a step, is 0."""
    live = inverse > 0
    at = inverse * tl.where(live, x, 0.0) + 0.5 * TOP
    at = tl.minimum(tl.maximum(at, 0.0), TOP)
    if RANDOM:
        words = rounding_words(stream, begin, TILE)
        at += (words >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
        symbol = tl.minimum(at, TOP).to(tl.int32)
    else:
        # Adding 1.5 * 2^23 leaves the nearest whole number in the lower bits.
        symbol = (bits_of(at + 12582912.0) & 0xFF).to(tl.int32)
    return tl.where(live, symbol, 0)


@triton.jit
def uniform_kernel(
    table,
    tensors,
    TOP: tl.constexpr,
    BITS: tl.constexpr,
    RANDOM: tl.constexpr,
    BUCKET: tl.constexpr,
    GROUP: tl.constexpr,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """uniform with TOP + 1 levels of BITS bits, which divide 8: csrc/codecs/quantize/uniform.cpp.

    A program holds whole groups. 13 bytes per element with feedback and 8 bits, 12.5 with 4.
    """
    TILE: tl.constexpr = BUCKET * GROUP
    tile = tl.program_id(0)
    row = row_of(table, tl.load(tensors + tile))
    n = whole(row, NUMEL)
    begin = (tile - whole(row, FIRST_TILE)) * TILE
    i = begin + tl.arange(0, TILE)
    ok = i < n
    x = corrected(row, i, ok, MODE, GRAD_TYPE, True, True, ALIGNED)
    largest = tl.max(tl.reshape(tl.where(ok, magnitude(x), 0), (GROUP, BUCKET)), axis=1)
    finite = largest < INF
    outermost = float_of(tl.where(finite, largest, 0))
    half_step = half_steps(outermost, TOP)
    usable = half_step > 0
    half = tl.full((GROUP,), 0.5, tl.float32)
    inverse = tl.where(usable, tl.div_rn(half, tl.where(usable, half_step, 1.0)), 0.0)
    nan = float_of(tl.full((GROUP,), NAN, tl.uint32))
    half_step = tl.where(finite, half_step, nan)
    out = tl.load(row + OUT)
    groups = (n + BUCKET - 1) // BUCKET
    group = begin // BUCKET + tl.arange(0, GROUP)
    tl.store(out.to(tl.pointer_type(tl.float32)) + group, half_step, mask=group < groups)
    inverse = _spread(inverse, GROUP, BUCKET)
    stream = tl.load(row + STREAM)
    symbol = uniform_symbols(x, inverse, stream, begin, TOP, RANDOM, TILE)
    store_symbols(out + 4 * groups, symbol, ok, begin, n, BITS, TILE)
    if MODE != PLAIN:
        decoded = ((2 * symbol).to(tl.float32) - TOP) * _spread(half_step, GROUP, BUCKET)
        tl.store(elements(row, RESIDUAL, i, ALIGNED), zero_nonfinite(x - decoded), mask=ok)
