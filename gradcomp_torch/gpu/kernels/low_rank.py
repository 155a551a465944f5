"""Thin factors of matrices on a device: bases, averages as factors of the next step, sums of outer products.

Two tables, with a row for each matrix: of its factors, and of the matrix itself.
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import zero_nonfinite
from gradcomp_torch.gpu.kernels.sums import fold
from gradcomp_torch.gpu.kernels.table import floats, whole

# The table of factors. `N` and `RANK` are of the factor that becomes a basis.
FACTOR_FIELDS = tl.constexpr(8)
VECTORS = tl.constexpr(0)  # pointer to float32: vectors one after the other, which become a basis
WIDE = tl.constexpr(1)  # pointer to as many float64
N = tl.constexpr(2)  # elements of each vector
RANK = tl.constexpr(3)  # number of vectors
OWN = tl.constexpr(4)  # pointer to float32: what was sent
MEAN = tl.constexpr(5)  # pointer to float32: its average
KEPT = tl.constexpr(6)  # pointer to float32: becomes the average
NUMEL = tl.constexpr(7)  # elements of the last three

# The table of matrices.
MATRIX_FIELDS = tl.constexpr(11)
M = tl.constexpr(0)  # pointer to float32: what is unsent
AVERAGE = tl.constexpr(1)  # pointer to float32
P = tl.constexpr(2)  # pointers to float32: factors of the average
Q = tl.constexpr(3)
OWN_P = tl.constexpr(4)  # of what M loses
OWN_Q = tl.constexpr(5)
ROWS = tl.constexpr(6)
COLS = tl.constexpr(7)
VECTORS_OF_MATRIX = tl.constexpr(8)
FIRST = tl.constexpr(9)  # number of the matrix's first tile in the launch
BEGUN = tl.constexpr(10)  # 1: add to the average; 0: replace it

SAFE = tl.constexpr(2.0**60)  # of algorithms/low_rank.py
DEPENDENT = tl.constexpr(1e-7)  # of csrc/linalg/orthonormalize.hpp


@triton.jit
def orthonormalize_kernel(table, B: tl.constexpr):
    """Modified Gram-Schmidt, a program for each factor: the steps of csrc/linalg/orthonormalize.cpp.

    In float64; the elements are rounded to float32 in the end. A sum has B partial sums, of elements i, i + B,
    ..., which are added pairwise: the same bits on every device.
    """
    row = table + tl.program_id(0).to(tl.int64) * FACTOR_FIELDS
    vectors = floats(row, VECTORS)
    wide = tl.load(row + WIDE).to(tl.pointer_type(tl.float64))
    n, rank = whole(row, N), whole(row, RANK)
    lane = tl.arange(0, B)
    for i in range(0, n * rank, B):
        ok = i + lane < n * rank
        x = tl.load(vectors + i + lane, mask=ok, other=0.0)
        tl.store(wide + i + lane, zero_nonfinite(x).to(tl.float64), mask=ok)
    tl.debug_barrier()  # other threads read the elements; likewise below
    for c in range(rank):
        vector = wide + c * n
        # One loop: each place of a sum in the code costs registers. The norm of the vector comes first, then that of
        # what each projection has left of it.
        before = tl.load(vector) * 0
        left = before
        turns = 2
        turn = 0
        while turn < turns:
            if turn > 0:
                _project_out(wide, vector, c, n, B)
            left = tl.sqrt(_dot(vector, vector, n, B))
            if turn == 0:
                before = left
            elif turn == 1:
                if left <= DEPENDENT * before:
                    _replace(wide, vector, c, n, B)
                    turns = 4
                else:
                    if left < 0.5 * before:
                        turns = 3
            turn += 1
        scale = 1 / left
        for i in range(0, n, B):
            ok = i + lane < n
            x = scale * tl.load(vector + i + lane, mask=ok, other=0.0)
            tl.store(vector + i + lane, x, mask=ok)
            tl.store(vectors + c * n + i + lane, x.to(tl.float32), mask=ok)
        tl.debug_barrier()


@triton.jit
def _dot(x, y, n, B: tl.constexpr):
    lane = tl.arange(0, B)
    sums = tl.zeros((B,), tl.float64)
    for i in range(0, n, B):
        ok = i + lane < n
        a = tl.load(x + i + lane, mask=ok, other=0.0)
        sums += a * tl.load(y + i + lane, mask=ok, other=0.0)
    return fold(sums, B)


@triton.jit
def _project_out(wide, vector, c, n, B: tl.constexpr):
    """Subtracts from a vector its projections on the c vectors before it."""
    lane = tl.arange(0, B)
    for k in range(c):
        other = wide + k * n
        factor = -_dot(other, vector, n, B)
        for i in range(0, n, B):
            ok = i + lane < n
            x = factor * tl.load(other + i + lane, mask=ok, other=0.0)
            to = vector + i + lane
            tl.store(to, tl.load(to, mask=ok, other=0.0) + x, mask=ok)
        tl.debug_barrier()


@triton.jit
def _replace(wide, vector, c, n, B: tl.constexpr):
    """Replaces a vector by the unit vector with the smallest projection on the c vectors before it."""
    lane = tl.arange(0, B)
    least = tl.full((B,), float("inf"), tl.float64)
    place = tl.zeros((B,), tl.int32)
    for i in range(0, n, B):
        taken = tl.zeros((B,), tl.float64)
        for k in range(c):
            x = tl.load(wide + k * n + i + lane, mask=i + lane < n, other=0.0)
            taken += x * x
        less = (i + lane < n) & (taken < least)
        least = tl.where(less, taken, least)
        place = tl.where(less, i + lane, place)
    smallest = tl.min(least, axis=0)
    best = tl.min(tl.where(least == smallest, place, n), axis=0)
    for i in range(0, n, B):
        unit = tl.where(i + lane == best, 1.0, 0.0).to(tl.float64)
        tl.store(vector + i + lane, unit, mask=i + lane < n)
    tl.debug_barrier()


@triton.jit
def keep_kernel(table, tensors, first, unsafe, B: tl.constexpr):
    """Averages become factors, with 0 for NaN and Inf, a program for each vector. 16 bytes per element.

    A vector of zeros does not replace the earlier one. ``unsafe`` of a matrix becomes 1 where its products with what
    was sent could overflow.
    """
    vector = tl.program_id(0)
    tensor = tl.load(tensors + vector)
    row = table + tensor.to(tl.int64) * FACTOR_FIELDS
    n = whole(row, NUMEL) // whole(row, RANK)
    begin = (vector - tl.load(first + tensor)) * n
    sent, mean, kept = (
        floats(row, OWN) + begin,
        floats(row, MEAN) + begin,
        floats(row, KEPT) + begin,
    )
    lane = tl.arange(0, B)
    overflows = tl.zeros((B,), tl.int32)
    known = tl.zeros((B,), tl.int32)
    for i in range(0, n, B):
        ok = i + lane < n
        x = tl.load(sent + i + lane, mask=ok, other=0.0)
        overflows |= tl.where(tl.abs(x) < SAFE, 0, 1)
        known |= tl.where(zero_nonfinite(tl.load(mean + i + lane, mask=ok, other=0.0)) == 0, 0, 1)
    tl.atomic_or(unsafe + tensor, tl.max(overflows, axis=0), sem="relaxed")
    if tl.max(known, axis=0) > 0:
        for i in range(0, n, B):
            ok = i + lane < n
            x = tl.load(mean + i + lane, mask=ok, other=0.0)
            tl.store(kept + i + lane, zero_nonfinite(x), mask=ok)


@triton.jit
def apply_kernel(table, tensors, unsafe, SAME: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """The average gains p q^T, and M loses what was sent, or all where that is unsafe. 12 bytes per element.

    R rows and C columns of a matrix. Elements are sums over the vectors in their order, as in the core. With SAME
    the factors of both are the same.
    """
    tile = tl.program_id(0)
    tensor = tl.load(tensors + tile)
    row = table + tensor.to(tl.int64) * MATRIX_FIELDS
    rows, cols = whole(row, ROWS), whole(row, COLS)
    tile -= whole(row, FIRST)
    across = (cols + C - 1) // C
    i = tile // across * R + tl.arange(0, R)
    j = tile % across * C + tl.arange(0, C)
    gain = _outer(row, P, Q, i, j, rows, cols)
    at = i[:, None] * cols + j[None, :]
    ok = (i < rows)[:, None] & (j < cols)[None, :]
    average = floats(row, AVERAGE) + at
    if whole(row, BEGUN) == 0:
        tl.store(average, gain, mask=ok)
    else:
        tl.store(average, tl.load(average, mask=ok, other=0.0) + gain, mask=ok)
    loss = gain if SAME else _outer(row, OWN_P, OWN_Q, i, j, rows, cols)
    m = floats(row, M) + at
    left = tl.load(m, mask=ok, other=0.0) - loss
    tl.store(m, tl.where(tl.load(unsafe + tensor) == 0, left, 0.0), mask=ok)


@triton.jit
def _outer(row, LEFT: tl.constexpr, RIGHT: tl.constexpr, i, j, rows, cols):
    p, q = floats(row, LEFT), floats(row, RIGHT)
    x = tl.load(p + i, mask=i < rows, other=0.0)
    total = x[:, None] * tl.load(q + j, mask=j < cols, other=0.0)[None, :]
    for c in range(1, whole(row, VECTORS_OF_MATRIX)):
        x = tl.load(p + c * rows + i, mask=i < rows, other=0.0)
        total += x[:, None] * tl.load(q + c * cols + j, mask=j < cols, other=0.0)[None, :]
    return total
