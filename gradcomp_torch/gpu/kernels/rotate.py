"""`rotate|uniform`, as csrc/coding/rotation.cpp and csrc/codecs/quantize/uniform.cpp.

A tensor has whole blocks of P = 2^LOG2 elements, the largest power of two up to 4096 that it has room for.
If they do not cover it, the *rest* is one more block over its last P elements, which was rotated in part
before. Groups are runs of rotated elements with a scale each: the blocks and the rest; the last whole block
keeps the elements that the rest does not cover.

Kernels run one after the other on rotated elements in memory, so that no program waits for another: 40.5
bytes per element with feedback and 4 bits, 16.5 without.
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
from gradcomp_torch.gpu.kernels.quantize import half_steps, store_symbols, uniform_symbols
from gradcomp_torch.gpu.kernels.random import rotation_words
from gradcomp_torch.gpu.kernels.sums import fold
from gradcomp_torch.gpu.kernels.table import (
    FACTOR,
    FIRST_BLOCK,
    FIRST_GROUP,
    FIRST_TILE,
    LOG2,
    NUMEL,
    OUT,
    RESIDUAL,
    ROTATED,
    SCALAR,
    STREAM,
    double,
    elements,
    floats,
    payload,
    real,
    row_of,
    whole,
)

BLOCK = tl.constexpr(4096)
LEVELS = tl.constexpr(12)  # of butterflies in it


@triton.jit
def hadamard(x, log2):
    """Butterflies of strides 1, 2, 4, ... below 2^log2, in that order: of a whole block four strides at a time, of
    others two, as elements change their threads for each step."""
    if log2 == LEVELS:
        x = _of_whole_block(x)
    else:
        for level in tl.static_range(0, LEVELS, 2):
            if level < log2:
                x = _butterflies(x, level, level + 1 < log2)
    return x


@triton.jit
def _of_whole_block(x):
    """All butterflies. An index has three digits to the base 16, and the strides of the last digit are next."""
    x = tl.permute(_sixteens(x), (0, 2, 1))
    x = tl.permute(_sixteens(x), (2, 1, 0))
    x = tl.permute(_sixteens(x), (2, 0, 1))
    return tl.reshape(x, (BLOCK,))


@triton.jit
def _sixteens(x):
    """Butterflies of runs of 16 elements, each of which a thread has in its registers; as [16, 16, 16]."""
    x = tl.reshape(x, (BLOCK // 16, 2, 2, 2, 2))
    for level in tl.static_range(4):
        x = _pairs(x, level)
    return tl.reshape(x, (16, 16, 16))


@triton.jit
def _pairs(x, LEVEL: tl.constexpr):
    """Sums and differences along the axis that is LEVEL axes before the last one."""
    if LEVEL == 1:
        x = tl.permute(x, (0, 1, 2, 4, 3))
    elif LEVEL == 2:
        x = tl.permute(x, (0, 1, 4, 3, 2))
    elif LEVEL == 3:
        x = tl.permute(x, (0, 4, 2, 3, 1))
    a, b = tl.split(x)
    x = tl.join(a + b, a - b)
    if LEVEL == 1:
        x = tl.permute(x, (0, 1, 2, 4, 3))
    elif LEVEL == 2:
        x = tl.permute(x, (0, 1, 4, 3, 2))
    elif LEVEL == 3:
        x = tl.permute(x, (0, 4, 2, 3, 1))
    return x


@triton.jit
def _butterflies(x, LEVEL: tl.constexpr, both):
    """Sums and differences of elements 2^LEVEL apart; then, if ``both``, of those twice as far apart."""
    fours = tl.reshape(x, (BLOCK >> (LEVEL + 2), 2, 2, 1 << LEVEL))
    even, odd = tl.split(tl.permute(fours, (0, 3, 1, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    a, b = a + b, a - b
    c, d = c + d, c - d
    even = tl.join(tl.where(both, a + c, a), tl.where(both, a - c, c))
    odd = tl.join(tl.where(both, b + d, b), tl.where(both, b - d, d))
    return tl.reshape(tl.permute(tl.join(even, odd), (0, 2, 3, 1)), (BLOCK,))


@triton.jit
def flip(stream, factor, block, x):
    """The factor of the rotation, and its random signs."""
    words = rotation_words(stream, block)
    signs = (words[:, None] >> tl.arange(0, 32)[None, :].to(tl.uint32)) << 31
    return float_of(bits_of(x * factor) ^ tl.reshape(signs, (BLOCK,)))


@triton.jit
def _flip(row, block, x):
    return flip(tl.load(row + STREAM), real(row, FACTOR), block, x)


@triton.jit
def block_or_rest(block, n, log2, REST: tl.constexpr):
    """Of a block of n elements, or of their rest: its number, its elements, those that it has, and the
    first element that is in no whole block."""
    blocks = n >> log2
    if REST:
        block = blocks
        begin = n - (1 << log2)
    else:
        begin = block << log2
    j = tl.arange(0, BLOCK)
    return block, begin + j, j < (1 << log2), blocks << log2


@triton.jit
def _own_block(table, tensors, REST: tl.constexpr):
    """The row of the program's tensor, and its block or rest, as in `block_or_rest`."""
    program = tl.program_id(0)
    row = row_of(table, tl.load(tensors + program))
    number = program - whole(row, FIRST_BLOCK)
    block, i, inside, covered = block_or_rest(number, whole(row, NUMEL), whole(row, LOG2), REST)
    return row, block, i, inside, covered


@triton.jit
def rotate_kernel(
    table,
    tensors,
    REST: tl.constexpr,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Corrects a block in the residual and writes it rotated; or a tensor's rest, in a later launch.

    16 bytes per element with feedback, 8 without.
    """
    row, block, i, inside, covered = _own_block(table, tensors, REST)
    log2 = whole(row, LOG2)
    to = floats(row, ROTATED) + i
    if REST:
        fresh = inside & (i >= covered)
        x = corrected(row, i, fresh, MODE, GRAD_TYPE, True, True, False)
        rotated = tl.load(to, mask=inside & (i < covered), other=0.0)
        turned = tl.where(fresh, x, rotated)
        residual = elements(row, RESIDUAL, i, False)
    else:
        fresh = inside
        x = corrected(row, i, fresh, MODE, GRAD_TYPE, True, True, ALIGNED)
        turned = x
        residual = elements(row, RESIDUAL, i, ALIGNED)
    if MODE != PLAIN:
        tl.store(residual, x, mask=fresh)
    turned = tl.where(inside, turned, 0.0)
    tl.store(to, hadamard(_flip(row, block, turned), log2), mask=inside)


@triton.jit
def scales_kernel(table, tensors, TOP: tl.constexpr, UNROLL: tl.constexpr):
    """Measures a group and writes its scale. 4 bytes per element.

    Squares are added in 16 lanes, row after row; UNROLL rows are loaded at a time.
    """
    program = tl.program_id(0)
    row = row_of(table, tl.load(tensors + program))
    group = program - whole(row, FIRST_GROUP)
    log2 = whole(row, LOG2)
    n = whole(row, NUMEL)
    blocks = n >> log2
    begin = tl.where(group < blocks, group << log2, n - (1 << log2))
    rest = n - (blocks << log2)
    shared = tl.where(rest > 0, tl.where(group == blocks - 1, 1, 0), 0) == 1
    count = tl.where(shared, rest, 1 << log2)
    x = floats(row, ROTATED) + begin
    lane = tl.arange(0, 16)
    squares = tl.zeros((16,), tl.float64)
    largest = tl.zeros((16,), tl.int32)
    for at in range(0, count, 16 * UNROLL):
        for step in tl.static_range(UNROLL):
            j = at + 16 * step + lane
            value = tl.load(x + j, mask=j < count, other=0.0)
            wide = value.to(tl.float64)
            squares += wide * wide
            largest = tl.maximum(largest, magnitude(value))
    mean = (tl.zeros((1,), tl.float64) + fold(squares)) / count.to(tl.float64)
    most = tl.zeros((1,), tl.int32) + tl.max(largest, axis=0)
    finite = most < INF
    outermost = float_of(tl.where(finite, most, 0))
    clipped = double(row, SCALAR) * tl.sqrt(mean)
    limit = tl.minimum(clipped, outermost.to(tl.float64)).to(tl.float32)
    limit = tl.where(finite, limit, 0.0)
    half_step = half_steps(limit, TOP)
    fits = half_step <= 1.2676506002282294e30  # 2^100
    nan = float_of(tl.full((1,), NAN, tl.uint32))
    half_step = tl.where(finite & fits, half_step, nan)
    tl.store(payload(row, 0, tl.float32) + group + tl.arange(0, 1), half_step)


@triton.jit
def _inverse(half_step):
    usable = half_step > 0  # neither 0 nor NaN
    return tl.where(usable, tl.div_rn(0.5, tl.where(usable, half_step, 1.0)), 0.0)


@triton.jit
def levels_kernel(
    table,
    tensors,
    TOP: tl.constexpr,
    BITS: tl.constexpr,
    RANDOM: tl.constexpr,
    MODE: tl.constexpr,
):
    """Rounds a tile of rotated elements, packs the levels, and writes what they decode to.

    4.5 bytes per element of 4 bits, and 4 more with feedback.
    """
    tile = tl.program_id(0)
    row = row_of(table, tl.load(tensors + tile))
    log2 = whole(row, LOG2)
    n = whole(row, NUMEL)
    begin = (tile - whole(row, FIRST_TILE)) * BLOCK
    i = begin + tl.arange(0, BLOCK)
    ok = i < n
    blocks = n >> log2
    rest = n - (blocks << log2)
    groups = blocks + tl.where(rest > 0, 1, 0)
    # A tile has elements of a block's group and of the last group, if not of one alone.
    scales = payload(row, 0, tl.float32)
    of_block = tl.load(scales + tl.minimum(tile - whole(row, FIRST_TILE), blocks - 1))
    last = tl.load(scales + groups - 1)
    in_last = i >= n - (1 << log2)
    half_step = tl.where(in_last, last, of_block)
    inverse = tl.where(in_last, _inverse(last), _inverse(of_block))
    to = floats(row, ROTATED) + i
    x = tl.load(to, mask=ok, other=0.0)
    symbol = uniform_symbols(x, inverse, tl.load(row + STREAM), begin, TOP, RANDOM, BLOCK)
    store_symbols(tl.load(row + OUT) + 4 * groups, symbol, ok, begin, n, BITS, BLOCK)
    if MODE != PLAIN:
        tl.store(to, ((2 * symbol).to(tl.float32) - TOP) * half_step, mask=ok)


@triton.jit
def rotate_back_kernel(table, tensors, REST: tl.constexpr, ALIGNED: tl.constexpr):
    """Rotates a block's decoded elements back and subtracts them; or a rest's, in an earlier launch.

    12 bytes per element.
    """
    row, block, i, inside, covered = _own_block(table, tensors, REST)
    log2 = whole(row, LOG2)
    to = floats(row, ROTATED) + i
    decoded = _flip(row, block, hadamard(tl.load(to, mask=inside, other=0.0), log2))
    if REST:
        done = inside & (i >= covered)
        tl.store(to, decoded, mask=inside & (i < covered))
        # A NaN scale of the neighbour makes these elements NaN, too.
        scale = tl.load(payload(row, 0, tl.float32) + block - 1)
        decoded = tl.where(scale == scale, decoded, float("nan"))
        residual = elements(row, RESIDUAL, i, False)
    else:
        done = inside
        residual = elements(row, RESIDUAL, i, ALIGNED)
    x = tl.load(residual, mask=done, other=0.0)
    tl.store(residual, zero_nonfinite(x - decoded), mask=done)
