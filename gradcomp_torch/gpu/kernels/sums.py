"""Sums of float64 in one order; of 16 partial sums it is the core's: csrc/kernels/sums.hpp."""

import triton
import triton.language as tl


@triton.jit
def fold(lanes, COUNT: tl.constexpr = 16):
    """Adds partial sums pairwise: of 16, j and j + 8, then j and j + 4, ..."""
    LEVELS: tl.constexpr = COUNT.bit_length() - 1
    for level in tl.static_range(LEVELS):
        pairs = tl.reshape(lanes, (2, (COUNT // 2) >> level))
        a, b = tl.split(tl.permute(pairs, (1, 0)))
        lanes = a + b
    return tl.sum(lanes, axis=0)


@triton.jit
def sequential(x, n, mean, SQUARES: tl.constexpr):
    """Sum of the float32 at `x`, or of their squared distances to `mean`, one after the other."""
    total = tl.zeros((1,), tl.float64)
    for i in range(n):
        wide = tl.load(x + i).to(tl.float64)
        if SQUARES:
            total += (wide - mean) * (wide - mean)
        else:
            total += wide
    return tl.sum(total, axis=0)
