"""sign, onebit and terngrad: a pass that corrects and sums, then a pass that rounds and subtracts.

Sums are the core's: of chunks of 65,536 elements, each in 16 lanes, then chunk after chunk.
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import (
    INF,
    NAN,
    bits_of,
    float_of,
    magnitude,
    zero_nonfinite,
)
from gradcomp_torch.gpu.kernels.correct import PLAIN, corrected
from gradcomp_torch.gpu.kernels.random import rounding_word, rounding_words
from gradcomp_torch.gpu.kernels.sums import fold
from gradcomp_torch.gpu.kernels.table import (
    FIRST_BLOCK,
    FIRST_TILE,
    NUMEL,
    RESIDUAL,
    SCALAR,
    STREAM,
    double,
    elements,
    payload,
    row_of,
    whole,
)

SIGN = tl.constexpr(0)  # sum of magnitudes
ONEBIT = tl.constexpr(1)  # sums of elements below 0 and of the others
TERNGRAD = tl.constexpr(2)  # sum, and sum of squares
SUMS = tl.constexpr(2)  # float64 of a chunk
COUNTS = tl.constexpr(2)  # int32 of a chunk: elements below 0, largest magnitude bits
NAN64 = tl.constexpr(0x7FF8000000000000)


@triton.jit
def measure_kernel(
    table,
    tensors,
    sums,
    counts,
    CODEC: tl.constexpr,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
    PIECE: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Corrects a chunk in the residual and sums it up. 12 bytes per element with feedback.

    All threads correct a piece of the chunk, then 16 lanes add its rows of 16 elements, one after the
    other, from the cache. UNROLL rows are loaded at a time: nothing is stored between their loads.
    """
    chunk = tl.program_id(0)
    row = row_of(table, tl.load(tensors + chunk))
    n = whole(row, NUMEL)
    begin = (chunk - whole(row, FIRST_BLOCK)) * CHUNK
    end = tl.minimum(begin + CHUNK, n)
    lane = tl.arange(0, 16)
    first = tl.zeros((16,), tl.float64)
    second = tl.zeros((16,), tl.float64)
    negatives = tl.zeros((16,), tl.int32)
    largest = tl.zeros((16,), tl.int32)
    for piece in range(begin, end, PIECE):
        piece_end = tl.minimum(piece + PIECE, end)
        if MODE != PLAIN:
            _correct(row, piece, piece_end, MODE, GRAD_TYPE, ALIGNED, PIECE)
            tl.debug_barrier()  # other threads read the elements
        for at in range(piece, piece_end, 16 * UNROLL):
            for step in tl.static_range(UNROLL):
                i = at + 16 * step + lane
                x = tl.load(elements(row, RESIDUAL, i, False), mask=i < piece_end, other=0.0)
                wide = x.to(tl.float64)
                if CODEC == SIGN:
                    first += tl.abs(wide)
                elif CODEC == ONEBIT:
                    # A NaN fails both comparisons and goes to both sums.
                    first += tl.where(wide > 0, 0.0, wide)
                    second += tl.where(wide < 0, 0.0, wide)
                    negatives += (x < 0).to(tl.int32)
                else:
                    first += wide
                    second += wide * wide
                    largest = tl.maximum(largest, magnitude(x))
    tl.store(sums + SUMS * chunk, fold(first))
    tl.store(sums + SUMS * chunk + 1, fold(second))
    tl.store(counts + COUNTS * chunk, tl.sum(negatives, axis=0))
    tl.store(counts + COUNTS * chunk + 1, tl.max(largest, axis=0))


@triton.jit
def _correct(
    row,
    begin,
    end,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    PIECE: tl.constexpr,
):
    i = begin + tl.arange(0, PIECE)
    x = corrected(row, i, i < end, MODE, GRAD_TYPE, True, True, ALIGNED)
    tl.store(elements(row, RESIDUAL, i, ALIGNED), x, mask=i < end)


@triton.jit
def scale_kernel(
    table, sums, counts, CODEC: tl.constexpr, CHUNK: tl.constexpr, UNROLL: tl.constexpr
):
    """Adds up a tensor's chunks, in order and UNROLL at a time, and writes the head of its payload."""
    row = row_of(table, tl.program_id(0))
    n = whole(row, NUMEL)
    start = whole(row, FIRST_BLOCK)
    first = tl.zeros((1,), tl.float64)
    second = tl.zeros((1,), tl.float64)
    negatives = tl.zeros((1,), tl.int32)
    largest = tl.zeros((1,), tl.int32)
    end = start + (n + CHUNK - 1) // CHUNK
    for at in range(start, end, UNROLL):
        for step in tl.static_range(UNROLL):
            chunk = at + step
            ok = chunk < end
            first += tl.load(sums + SUMS * chunk, mask=ok, other=0.0)
            second += tl.load(sums + SUMS * chunk + 1, mask=ok, other=0.0)
            negatives += tl.load(counts + COUNTS * chunk, mask=ok, other=0)
            found = tl.load(counts + COUNTS * chunk + 1, mask=ok, other=0)
            largest = tl.maximum(largest, found)
    head = payload(row, 0, tl.int32) + tl.arange(0, 1)
    count = tl.maximum(n, 1).to(tl.float64)
    if CODEC == SIGN:
        mean = (first / count).to(tl.float32)
        tl.store(head, tl.where(magnitude(mean) < INF, bits_of(mean).to(tl.int32), NAN))
    elif CODEC == ONEBIT:
        finite = tl.abs(first) + tl.abs(second) < float("inf")
        tl.store(head, _mean(first, negatives, finite))
        tl.store(head + 1, _mean(second, n - negatives, finite))
    else:
        scale = float_of(tl.where(largest >= INF, NAN, largest))
        clip = double(row, SCALAR)
        mean = first / count
        variance = second / count - mean * mean
        bound = clip * tl.sqrt(tl.where(variance > 0, variance, 0.0))
        clips = (scale > 0) & (bound < scale.to(tl.float64))
        clips = clips & (tl.zeros_like(bound) + clip > 0)
        scale = tl.where(clips, bound.to(tl.float32), scale)
        tl.store(head, bits_of(scale).to(tl.int32))


@triton.jit
def _mean(total, count, finite):
    """Bits of a mean rounded to float32: 0 of nothing, and NaN where a value is not finite."""
    mean = (total / tl.maximum(count, 1).to(tl.float64)).to(tl.float32)
    return tl.where(finite, tl.where(count == 0, 0, bits_of(mean).to(tl.int32)), NAN)


@triton.jit
def sign_bits_kernel(
    table,
    tensors,
    ONE_BIT: tl.constexpr,
    MODE: tl.constexpr,
    TILE: tl.constexpr,
):
    """A bit for each element, whether it is below 0; subtracts. 8.1 bytes per element."""
    tile = tl.program_id(0)
    row = row_of(table, tl.load(tensors + tile))
    n = whole(row, NUMEL)
    byte = (tile - whole(row, FIRST_TILE)) * (TILE // 8) + tl.arange(0, TILE // 8)
    i = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    ok = i < n
    to = elements(row, RESIDUAL, i, False)
    x = tl.load(to, mask=ok, other=0.0)
    negative = x < 0
    bit = negative.to(tl.int32) << tl.arange(0, 8)[None, :]
    HEAD: tl.constexpr = 8 if ONE_BIT else 4
    packed = tl.sum(bit, axis=1).to(tl.uint8)
    tl.store(payload(row, HEAD, tl.uint8) + byte, packed, mask=byte * 8 < n)
    if MODE != PLAIN:
        head = payload(row, 0, tl.float32)
        if ONE_BIT:
            decoded = tl.where(negative, tl.load(head), tl.load(head + 1))
        else:
            decoded = tl.where(negative, -tl.load(head), tl.load(head))
        tl.store(to, zero_nonfinite(x - decoded), mask=ok)


@triton.jit
def ternary_kernel(table, tensors, MODE: tl.constexpr):
    """Five digits in a byte: byte j of a block of B bytes has the elements j, j + B, ..., j + 4 B.

    A block has 1280 elements, the last one fewer. 8.2 bytes per element.
    """
    block = tl.program_id(0)
    row = row_of(table, tl.load(tensors + block))
    begin = (block - whole(row, FIRST_TILE)) * 1280
    left = whole(row, NUMEL) - begin
    if left >= 1280:
        _ternary(row, begin, left, 256, MODE, True)
    else:
        _ternary(row, begin, left, (left + 4) // 5, MODE, False)


@triton.jit
def _ternary(row, begin, left, size, MODE: tl.constexpr, FULL: tl.constexpr):
    j = tl.arange(0, 256)
    scale = tl.load(payload(row, 0, tl.float32))
    stream = tl.load(row + STREAM)
    packed = tl.zeros((256,), tl.int32)
    power = 1
    for part in tl.static_range(5):
        at = size * part + j
        ok = (j < size) & (at < left)
        to = elements(row, RESIDUAL, begin + at, False)
        x = tl.load(to, mask=ok, other=0.0)
        if FULL:
            words = rounding_words(stream, begin + 256 * part, 256)
        else:
            words = rounding_word(stream, begin + at)
        uniform = (words >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
        kept = ok & (uniform * scale < tl.abs(x))
        digit = tl.where(kept, 1 + (bits_of(x) >> 31).to(tl.int32), 0)
        digit = tl.where(scale > 0, digit, 0)
        packed += digit * power
        power = power * 3
        if MODE != PLAIN:
            level = (digit - 3 * (digit >> 1)).to(tl.float32)
            tl.store(to, zero_nonfinite(x - scale * level), mask=ok)
    out = payload(row, 4, tl.uint8) + begin // 5
    tl.store(out + j, packed.to(tl.uint8), mask=j < size)
