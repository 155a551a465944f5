"""randomk: a random place in each of k parts, as csrc/codecs/sparse/randomk.cpp."""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import INF, bits_of, float_of, magnitude
from gradcomp_torch.gpu.kernels.correct import CORRECTION, PLAIN
from gradcomp_torch.gpu.kernels.random import draw, draw_word
from gradcomp_torch.gpu.kernels.table import (
    FIRST_BLOCK,
    KEPT,
    MOMENTUM,
    NUMEL,
    OUT,
    RESIDUAL,
    SCALAR,
    STREAM,
    STRIDE,
    double,
    floats,
    row_of,
    whole,
)

WORDS = tl.constexpr(4096 << 32)  # for parts of up to 4096 places, one word decides


@triton.jit
def _place(stream, part, step):
    """The drawn place of a part (uint64), before the ring is turned."""
    begin = part * step
    first = begin >> 32
    size = ((begin + step) >> 32) - first
    short = (draw_word(stream, part).to(tl.uint64) * size) >> 32
    return first + tl.where(step > WORDS, tl.umulhi(draw(stream, part), size), short)


@triton.jit
def gather_kernel(
    table,
    tensors,
    UNBIASED: tl.constexpr,
    MODE: tl.constexpr,
    MASKING: tl.constexpr,
    B: tl.constexpr,
):
    """Writes the kept values as float32; what they leave in the residual is 0. O(k) bytes."""
    block = tl.program_id(0)
    row = row_of(table, tl.load(tensors + block))
    stream = tl.load(row + STREAM)
    n = tl.load(row + NUMEL).to(tl.uint64)
    k = tl.load(row + KEPT).to(tl.uint64)
    step = tl.load(row + STRIDE).to(tl.uint64)
    # The first part begins at a random element of the ring: places from `wrap` on wrap around.
    turn = tl.umulhi(draw(stream, k), n)
    wrap = n - turn
    part = (wrap << 32) // step
    part += tl.where((((part + 1) * step) >> 32) <= wrap, 1, 0).to(tl.uint64)
    before = part + tl.where(_place(stream, part, step) < wrap, 1, 0).to(tl.uint64)
    before = tl.where(turn == 0, k, before)
    i = ((block - whole(row, FIRST_BLOCK)) * B + tl.arange(0, B)).to(tl.uint64)
    ok = i < k
    late = k - before
    place = _place(stream, tl.where(i < late, before + i, i - late), step) + turn
    index = tl.where(place >= n, place - n, place).to(tl.int32)
    source = floats(row, RESIDUAL) + index
    value = tl.load(source, mask=ok, other=0.0)
    if UNBIASED:
        # A NaN keeps its payload, as on the host's processors; a GPU's product would have another.
        quiet = float_of(bits_of(value) | 0x400000)
        scaled = value * double(row, SCALAR).to(tl.float32)
        value = tl.where(magnitude(value) > INF, quiet, scaled)
    out = tl.load(row + OUT).to(tl.pointer_type(tl.float32))
    tl.store(out + i.to(tl.int32), value, mask=ok)
    if MODE != PLAIN:
        tl.store(source, tl.zeros_like(value), mask=ok)
    if MASKING and MODE >= CORRECTION:
        tl.store(floats(row, MOMENTUM) + index, tl.zeros_like(value), mask=ok)
