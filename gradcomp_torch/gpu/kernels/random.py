"""Random numbers of the core: csrc/base/rng.hpp. A stream's key comes from the table.

`tl.philox` with a counter of uint32 (block, 0, use, 0) is the core's `stream_block`.
"""

import triton
import triton.language as tl

DRAWS = tl.constexpr(0)
ROTATION = tl.constexpr(1)
ROUNDING = tl.constexpr(2)


@triton.jit
def stream_block(stream, use, block):
    """Four words of a block (uint32) of a use of a stream."""
    zero = tl.zeros_like(block)
    return tl.philox(stream, block, zero, zero + use, zero)


@triton.jit
def rounding_words(stream, first, N: tl.constexpr):
    """Rounding words of elements first to first + N - 1; both numbers are multiples of 32.

    A Philox block serves 8 elements: elements i and i + 16 of a run of 32 share a word.
    """
    block = (first // 8).to(tl.uint32) + tl.arange(0, N // 8).to(tl.uint32)
    a, b, c, d = stream_block(stream, ROUNDING, block)
    words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))  # a0 b0 c0 d0 a1 ...
    words = tl.reshape(words, (N // 32, 16))
    both = tl.join(words, (words << 16) | (words >> 16))  # [runs, 16, 2]
    return tl.reshape(tl.permute(both, (0, 2, 1)), (N,))


@triton.jit
def rounding_word(stream, i):
    """Rounding words of any elements, with a Philox block for each."""
    u = 16 * (i // 32) + i % 16
    a, b, c, d = stream_block(stream, ROUNDING, (u // 4).to(tl.uint32))
    word = _lane(a, b, c, d, u % 4)
    return tl.where(i % 32 >= 16, (word << 16) | (word >> 16), word)


@triton.jit
def rotation_words(stream, block):
    """The 128 words of signs of a block of a rotation: words 2^40 + 128 * block and up."""
    j = block * 32 + tl.arange(0, 32)
    zero = tl.zeros((32,), tl.uint32)
    # A counter has 4 words, so its upper half is 2^40 / 4 / 2^32.
    a, b, c, d = tl.philox(stream, j.to(tl.uint32), zero + 64, zero + ROTATION, zero)
    words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    return tl.reshape(words, (128,))


@triton.jit
def draw_word(stream, i):
    """Half i % 2 of sequential draw i // 2, the lower one first."""
    a, b, c, d = stream_block(stream, DRAWS, (i // 4).to(tl.uint32))
    return _lane(a, b, c, d, i % 4)


@triton.jit
def draw(stream, i):
    """Sequential draw i as uint64."""
    a, b, c, d = stream_block(stream, DRAWS, (i // 2).to(tl.uint32))
    odd = i % 2 == 1
    return (tl.where(odd, d, b).to(tl.uint64) << 32) | tl.where(odd, c, a).to(tl.uint64)


@triton.jit
def _lane(a, b, c, d, lane):
    return tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, d)))
