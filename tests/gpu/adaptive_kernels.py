"""Kernels for the parts of `adaptive` that every receiver must decode alike: see docs/gpu.md, "adaptive on a GPU"."""

import triton
import triton.language as tl

LOWEST = tl.constexpr(1 << 15)  # of a state
TOTAL = tl.constexpr(1 << 14)  # sum of a table's frequencies
SYMBOLS = tl.constexpr(15)
GROUP = tl.constexpr(32)  # elements of a row after which contexts change


@triton.jit
def levels_kernel(words, states, left, starts, levels, means, rows, cols, LANES: tl.constexpr):
    """Decodes a matrix of levels from a run of interleaved rANS states; a program, which is a warp, for each run.

    Args:
        words: uint16; the first ones are read last.
        states: int32, LANES of each run: before and after.
        left: number of words that are not read: before and after.
        starts: int32 [classes, 16], where each symbol's interval begins, and their sum.
        levels: int8 [rows, cols], magnitudes beyond 7 as 7.
        means: int32 of each column: before and after.
    """
    lane = tl.arange(0, LANES)
    state = tl.load(states + lane)
    at = tl.load(left)
    of_row = tl.load(means) * 0 + 410
    for i in range(rows):
        shift = _bit_length(i + 1 + lane * 0)
        shift = tl.minimum(shift, 5)
        for first in range(0, cols, GROUP):
            end = tl.minimum(first + GROUP, cols)
            total = first * 0
            for begin in range(first, end, LANES):
                j = begin + lane
                ok = j < end
                mean = tl.load(means + j, mask=ok, other=0)
                of = starts + 16 * _class_of(mean + of_row)
                slot = state % TOTAL
                symbol = slot * 0
                for k in tl.static_range(1, SYMBOLS):
                    symbol += (slot >= tl.load(of + k)).to(tl.int32)
                start = tl.load(of + symbol)
                following = (tl.load(of + symbol + 1) - start) * (state // TOTAL) + slot - start
                empty = ok & (following < LOWEST)
                # The last lane takes the last word.
                taken = empty.to(tl.int32)
                behind = tl.sum(taken, axis=0) - tl.cumsum(taken, axis=0)
                word = tl.load(words + at - 1 - behind, mask=empty, other=0).to(tl.int32)
                following = tl.where(empty, (following << 16) | word, following)
                state = tl.where(ok, following, state)
                at -= tl.sum(taken, axis=0)
                magnitude = (symbol + 1) // 2
                level = tl.where(symbol % 2 == 1, magnitude, -magnitude)
                tl.store(levels + i * cols + j, level.to(tl.int8), mask=ok)
                size = tl.where(ok, 4096 * magnitude, 0)
                total += tl.sum(size, axis=0)
                tl.store(means + j, mean + ((size - mean) >> shift), mask=ok)
            of_row += (total // (end - first) - of_row) >> 2
    tl.store(states + lane, state)
    tl.store(left, at)


@triton.jit
def _bit_length(x):
    length = x * 0
    for k in tl.static_range(18):
        length += (x >= (1 << k)).to(tl.int32)
    return length


@triton.jit
def _class_of(means):
    """The class of elements, from the sum of the means of column and row."""
    v = means + 164
    e = _bit_length(v) - 1
    of = 2 * e - 14 + (2 * v >= (3 << e)).to(tl.int32)
    return tl.minimum(tl.maximum(of, 0), 15)


@triton.jit
def product_kernel(p, q, out, rank, rows, cols, R: tl.constexpr, C: tl.constexpr):
    """``sum of p[k][i] * q[k][j]`` in the order of k, each product and sum rounded: R rows, C columns."""
    i = tl.program_id(0) * R + tl.arange(0, R)
    j = tl.program_id(1) * C + tl.arange(0, C)
    in_rows, in_cols = i < rows, j < cols
    one = tl.load(p + i, mask=in_rows, other=0.0)
    total = one[:, None] * tl.load(q + j, mask=in_cols, other=0.0)[None, :]
    for k in range(1, rank):
        one = tl.load(p + k * rows + i, mask=in_rows, other=0.0)
        total += one[:, None] * tl.load(q + k * cols + j, mask=in_cols, other=0.0)[None, :]
    to = out + i[:, None] * cols + j[None, :]
    tl.store(to, total, mask=in_rows[:, None] & in_cols[None, :])
