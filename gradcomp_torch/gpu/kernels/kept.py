"""Kept elements of all ranks are added, or assigned, in one launch: a program has a range of one tensor's elements.

It takes the ranks one after the other, so sums are in their order, and what it has added stays in the GPU's cache
until the last rank. Nobody has checked the messages: nothing is written outside of a program's range, and an index
out of order or outside of the tensor, or an impossible number, is noticed. A list of indices is right exactly if
each element is in the range of the program that takes it, and above the one before it; ranges lie side by side from
the first element to the last, so programs take all elements.

The table has a row for each tensor of each rank, with the fields of add.py, one rank after the other.
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.add import (
    ACC,
    COUNT,
    COUNTED,
    FIRST,
    INDICES,
    MESSAGE,
    NUMEL,
    WEIGHT,
    row_of_rank,
    values_of,
)
from gradcomp_torch.gpu.kernels.table import floats, real, whole


@triton.jit
def bounds_kernel(
    table,
    tensors,
    bounds,
    programs,
    count,
    steps,
    COUNTS: tl.constexpr,
    FEWEST: tl.constexpr,
    RANGE: tl.constexpr,
    B: tl.constexpr,
):
    """Finds the first element of each program's range in the indices of each rank, by bisection.

    Args:
        bounds: int32, [ranks, programs].
        count: of tensors.
        steps: of the longest bisection.
    """
    program = tl.program_id(0) * B + tl.arange(0, B)
    exists = program < programs
    program = tl.minimum(program, programs - 1)
    tensor = tl.load(tensors + program)
    row = row_of_rank(table, tensor, tl.program_id(1), count)
    indices = tl.load(row + INDICES).to(tl.pointer_type(tl.int32))
    begin = (program - whole(row, FIRST)) * RANGE
    low = begin * 0
    high = tl.where(begin == 0, 0, _number(row, COUNTS, FEWEST))
    for _ in range(steps):
        middle = (low + high) // 2
        within = low < high
        before = within & (tl.load(indices + middle, mask=within, other=0) < begin)
        high = tl.where(within & ~before, middle, high)
        low = tl.where(before, middle + 1, low)
    tl.store(bounds + tl.program_id(1) * programs + program, low, mask=exists)


@triton.jit
def _number(row, COUNTS: tl.constexpr, FEWEST: tl.constexpr):
    """Number of elements to add; with COUNTS the message's, or the nearest that is possible."""
    number = whole(row, COUNT)
    if COUNTS:
        number = tl.minimum(tl.maximum(_said(row), FEWEST), number)
    return number


@triton.jit
def _said(row):
    return tl.load(tl.load(row + COUNTED).to(tl.pointer_type(tl.int32)))


@triton.jit
def add_ranks_kernel(
    table,
    tensors,
    bounds,
    damaged,
    programs,
    count,
    ranks,
    TYPE: tl.constexpr,
    ASSIGNS: tl.constexpr,
    BEGUN: tl.constexpr,
    COUNTS: tl.constexpr,
    FEWEST: tl.constexpr,
    PACKED: tl.constexpr,
    RANGE: tl.constexpr,
    B: tl.constexpr,
):
    """``acc[index] += weight * value``, rank after rank, beginning at 0 unless BEGUN.

    With ASSIGNS ``acc[index] = value``. 4 bytes per element, and for each kept one 16, 8 of them at scattered
    addresses.

    Args:
        damaged: four numbers of each message; the first becomes 1 if its elements are not of the tensor.
    """
    program = tl.program_id(0)
    tensor = tl.load(tensors + program)
    row = row_of_rank(table, tensor, 0, count)
    begin = (program - whole(row, FIRST)) * RANGE
    n = whole(row, NUMEL)
    end = tl.minimum(begin + RANGE, n)
    acc = floats(row, ACC)
    lane = tl.arange(0, B)
    if not BEGUN:
        for first in range(begin, end, B):
            place = first + lane
            tl.store(acc + place, tl.zeros((B,), tl.float32), mask=place < end)
        tl.debug_barrier()  # other threads read the elements; likewise below
    for rank in range(ranks):
        rank_row = row_of_rank(table, tensor, rank, count)
        flag = damaged + 4 * whole(rank_row, MESSAGE)
        number = _number(rank_row, COUNTS, FEWEST)
        said = _said(rank_row) if COUNTS else number
        if number != said:
            tl.store(flag, 1)
        indices = tl.load(rank_row + INDICES).to(tl.pointer_type(tl.int32))
        of_rank = bounds + rank * programs + program
        if COUNTS and PACKED:
            # One more index was packed.
            more = tl.load(indices + number, mask=number < whole(rank_row, COUNT), other=-1)
            if more != -1:
                tl.store(flag, 1)
        last = tl.load(of_rank + 1, mask=end < n, other=0)
        last = tl.where(end < n, last, number)
        for first in range(tl.load(of_rank), last, B):
            i = first + lane
            ok = i < last
            index = tl.load(indices + i, mask=ok, other=0)
            before = tl.load(indices + i - 1, mask=ok & (i > 0), other=-1)
            inside = (index >= begin) & (index < end)
            wrong = ok & ((index <= before) | (index < begin) | (index >= end))
            if tl.max(wrong.to(tl.int32), axis=0) != 0:
                tl.store(flag, 1)
            ok = ok & inside
            value = values_of(rank_row, i, ok, TYPE)
            to = acc + index
            if ASSIGNS:
                tl.store(to, value, mask=ok)
            else:
                total = tl.load(to, mask=ok, other=0.0) + real(rank_row, WEIGHT) * value
                tl.store(to, total, mask=ok)
        tl.debug_barrier()
