"""Error feedback and the exact choice of each tensor's k elements of largest magnitude.

Magnitudes compare as integers; of equal ones the lower index is kept. Nothing waits for the device:
kernels read all decisions from a small state. In one pass over memory, each tile of the residual is
corrected, and its elements that reach a guess are copied to slots of its own. Where a tensor's guess
found k elements and no tile overflowed, a radix selection of three digits reads the slots, else the
whole residual: a bad guess costs time, never exactness.

Bytes per element with feedback: 12, and O(k) after a good guess; 32 after a bad one.
"""

import triton
import triton.language as tl

from torch_compressors.gpu.kernels.bits import INF, magnitude
from torch_compressors.gpu.kernels.correct import PLAIN, corrected
from torch_compressors.gpu.kernels.table import (
    FIRST_TILE,
    KEPT,
    NUMEL,
    OUT,
    RANK,
    RESIDUAL,
    RUNS,
    STRIDE,
    elements,
    floats,
    row_of,
    whole,
)

# Fields of a tensor's state, int32.
STATE = tl.constexpr(16)  # number of fields
PREFIX = tl.constexpr(0)  # upper digits of the k-th largest magnitude, at last all its bits
TAKEN = tl.constexpr(1)  # elements above the prefix; then k - TAKEN of those equal to it are kept
CANDIDATES = tl.constexpr(2)  # elements that reach the guess
NOT_FINITE = tl.constexpr(3)  # whether an element is NaN or Inf
OVERFLOW = tl.constexpr(4)  # whether a tile had more candidates than slots
GUESS = tl.constexpr(5)  # magnitude bits
LARGEST = tl.constexpr(8)  # magnitude bits of the largest kept element, for values=int8
SCALES = tl.constexpr(8)  # four float32 that decode kept values, as bits


@triton.jit
def guess_kernel(table, state, MODE: tl.constexpr, S: tl.constexpr, STEPS: tl.constexpr):
    """Sets the state back; its guess is a magnitude that a little more than k should reach.

    Bisects the upper STEPS bits of at most S sampled elements. A program for each tensor.
    """
    tensor = tl.program_id(0)
    row = row_of(table, tensor)
    at = tl.arange(0, S)
    # A stride has 32 bits, and so has every sampled index.
    i = (at // 16) * whole(row, STRIDE) + at % 16
    ok = (at // 16 < whole(row, RUNS)) & (i < whole(row, NUMEL))
    x = corrected(row, i, ok, MODE, False, False, False)
    m = tl.where(ok, magnitude(x), -1)
    rank = whole(row, RANK)
    low = rank * 0
    for step in tl.static_range(STEPS):
        middle = low + (1 << (30 - step))
        reached = tl.sum((m >= middle).to(tl.int32), axis=0)
        low = tl.where(reached >= rank, middle, low)
    fields = tl.arange(0, STATE)
    tl.store(state + tensor * STATE + fields, tl.where(fields == GUESS, low, 0))


@triton.jit
def collect_kernel(
    table,
    tensors,
    state,
    counts,
    slot_indices,
    slot_values,
    MODE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Corrects a tile, and copies its elements that reach the guess to its slots, in order."""
    tile = tl.program_id(0)
    tensor = tl.load(tensors + tile)
    row = row_of(table, tensor)
    n = whole(row, NUMEL)
    begin = (tile - whole(row, FIRST_TILE)) * TILE
    if begin + TILE <= n:
        _collect(
            row,
            state + tensor * STATE,
            tile,
            begin,
            n,
            counts,
            slot_indices,
            slot_values,
            MODE,
            ALIGNED,
            TILE,
            ROOM,
            True,
        )
    else:
        _collect(
            row,
            state + tensor * STATE,
            tile,
            begin,
            n,
            counts,
            slot_indices,
            slot_values,
            MODE,
            ALIGNED,
            TILE,
            ROOM,
            False,
        )


@triton.jit
def _collect(
    row,
    state,
    tile,
    begin,
    n,
    counts,
    slot_indices,
    slot_values,
    MODE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
    FULL: tl.constexpr,
):
    i = begin + tl.arange(0, TILE)
    if FULL:  # a constant, so that accesses are vectors
        ok = tl.full((TILE,), True, tl.int1)
    else:
        ok = i < n
    x = corrected(row, i, ok, MODE, True, False, ALIGNED)
    if MODE != PLAIN:
        tl.store(elements(row, RESIDUAL, i, ALIGNED), x, mask=ok)
    m = magnitude(x)
    if tl.max(tl.where(ok, m, 0), axis=0) >= INF:
        tl.atomic_or(state + NOT_FINITE, 1)
    hit = ok & (m >= tl.load(state + GUESS))
    at = tl.cumsum(hit.to(tl.int32), axis=0) - 1
    found = tl.sum(hit.to(tl.int32), axis=0)
    tl.store(counts + tile, tl.minimum(found, ROOM))
    slot = tile.to(tl.int64) * ROOM + at
    fits = hit & (at < ROOM)
    tl.store(slot_indices + slot, i, mask=fits)
    tl.store(slot_values + slot, x, mask=fits)
    tl.atomic_add(state + CANDIDATES, found)
    if found > ROOM:
        tl.atomic_or(state + OVERFLOW, 1)


@triton.jit
def _from_slots(state, k):
    """Whether the slots hold the tensor's k largest elements."""
    enough = tl.load(state + CANDIDATES) >= k
    return tl.where(enough, tl.load(state + OVERFLOW), 1) == 0


@triton.jit
def digits_kernel(
    table,
    tensors,
    state,
    counts,
    slot_values,
    histogram,
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    BINS: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
):
    """A pass of the radix selection: counts the next digits of magnitudes that begin with the prefix.

    `histogram` has BINS numbers for each tensor, at first zeros.
    """
    tile = tl.program_id(0)
    tensor = tl.load(tensors + tile)
    row = row_of(table, tensor)
    of = state + tensor * STATE
    bins = histogram + tensor * BINS
    prefix = tl.load(of + PREFIX)
    if _from_slots(of, whole(row, KEPT)):
        values = slot_values + tile.to(tl.int64) * ROOM
        _digits(values, tl.load(counts + tile), prefix, bins, SHIFT, BITS, ROOM)
    else:
        begin = (tile - whole(row, FIRST_TILE)) * TILE
        values = floats(row, RESIDUAL) + begin
        _digits(values, whole(row, NUMEL) - begin, prefix, bins, SHIFT, BITS, TILE)


@triton.jit
def _digits(
    values, count, prefix, histogram, SHIFT: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr
):
    at = tl.arange(0, SIZE)
    ok = at < count
    m = magnitude(tl.load(values + at, mask=ok, other=0.0))
    ok = ok & ((m >> (SHIFT + BITS)) == prefix)
    digit = (m >> SHIFT) & ((1 << BITS) - 1)
    here = tl.histogram(tl.where(ok, digit, 0), 1 << BITS)
    bins = tl.arange(0, 1 << BITS)
    absent = SIZE - tl.sum(ok.to(tl.int32), axis=0)
    here = here - tl.where(bins == 0, absent, 0)
    tl.atomic_add(histogram + bins, here, mask=here > 0)


@triton.jit
def pick_kernel(table, state, histogram, BITS: tl.constexpr, BINS: tl.constexpr):
    """Appends the digit of the k-th largest to the prefix. A program for each tensor.

    The last digit leaves in TAKEN the number of larger elements. Sets the histogram back.
    """
    tensor = tl.program_id(0)
    of = state + tensor * STATE
    bins = tl.arange(0, 1 << BITS)
    to = histogram + tensor * BINS + bins
    count = tl.load(to)
    taken = tl.load(of + TAKEN)
    above = taken + tl.sum(count, axis=0) - tl.cumsum(count, axis=0)
    k = whole(row_of(table, tensor), KEPT)
    here = (above < k) & (k <= above + count)
    digit = tl.sum(tl.where(here, bins, 0), axis=0)
    taken = tl.sum(tl.where(here, above, 0), axis=0)
    tl.store(of + PREFIX, (tl.load(of + PREFIX) << BITS) | digit)
    tl.store(of + TAKEN, taken)
    tl.store(to, tl.zeros_like(count))


@triton.jit
def count_kernel(
    table,
    tensors,
    state,
    counts,
    slot_values,
    above,
    equal,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Counts, in each tile, the elements above the k-th largest and equal to it."""
    tile = tl.program_id(0)
    tensor = tl.load(tensors + tile)
    row = row_of(table, tensor)
    of = state + tensor * STATE
    least = tl.load(of + PREFIX)
    if _from_slots(of, whole(row, KEPT)):
        values = slot_values + tile.to(tl.int64) * ROOM
        _count(values, tl.load(counts + tile), least, above + tile, equal + tile, ROOM)
    else:
        begin = (tile - whole(row, FIRST_TILE)) * TILE
        values = floats(row, RESIDUAL) + begin
        _count(values, whole(row, NUMEL) - begin, least, above + tile, equal + tile, TILE)


@triton.jit
def _count(values, count, least, above, equal, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    ok = at < count
    m = magnitude(tl.load(values + at, mask=ok, other=0.0))
    tl.store(above, tl.sum((ok & (m > least)).to(tl.int32), axis=0))
    tl.store(equal, tl.sum((ok & (m == least)).to(tl.int32), axis=0))


@triton.jit
def scan_kernel(table, above, equal, TILE: tl.constexpr, B: tl.constexpr):
    """Replaces counts by their sums over the tensor's tiles before. A program for each tensor."""
    row = row_of(table, tl.program_id(0))
    first = whole(row, FIRST_TILE)
    tiles = (whole(row, NUMEL) + TILE - 1) // TILE
    sum_above = first * 0
    sum_equal = first * 0
    for begin in range(0, tiles, B):
        i = begin + tl.arange(0, B)
        ok = i < tiles
        a = tl.load(above + first + i, mask=ok, other=0)
        e = tl.load(equal + first + i, mask=ok, other=0)
        tl.store(above + first + i, sum_above + tl.cumsum(a, axis=0) - a, mask=ok)
        tl.store(equal + first + i, sum_equal + tl.cumsum(e, axis=0) - e, mask=ok)
        sum_above += tl.sum(a, axis=0)
        sum_equal += tl.sum(e, axis=0)


@triton.jit
def compact_kernel(
    table,
    tensors,
    state,
    counts,
    slot_indices,
    slot_values,
    above,
    equal,
    indices,
    values,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Writes the kept elements in ascending order of index.

    Element e goes to above(e) + min(equal(e), ties), which count the elements before it.
    """
    tile = tl.program_id(0)
    tensor = tl.load(tensors + tile)
    row = row_of(table, tensor)
    of = state + tensor * STATE
    k = whole(row, KEPT)
    least = tl.load(of + PREFIX)
    ties = k - tl.load(of + TAKEN)
    kept = tl.load(row + OUT)
    to_indices = indices + kept
    to_values = values + kept
    more_before = tl.load(above + tile)
    same_before = tl.load(equal + tile)
    begin = (tile - whole(row, FIRST_TILE)) * TILE
    if _from_slots(of, k):
        slot = tile.to(tl.int64) * ROOM
        _compact(
            slot_values + slot,
            slot_indices + slot,
            tl.load(counts + tile),
            0,
            least,
            ties,
            more_before,
            same_before,
            to_indices,
            to_values,
            ROOM,
            True,
        )
    else:
        _compact(
            floats(row, RESIDUAL) + begin,
            slot_indices,
            whole(row, NUMEL) - begin,
            begin,
            least,
            ties,
            more_before,
            same_before,
            to_indices,
            to_values,
            TILE,
            False,
        )


@triton.jit
def _compact(
    values,
    slot_indices,
    count,
    begin,
    least,
    ties,
    more_before,
    same_before,
    to_indices,
    to_values,
    SIZE: tl.constexpr,
    SLOTS: tl.constexpr,
):
    at = tl.arange(0, SIZE)
    ok = at < count
    x = tl.load(values + at, mask=ok, other=0.0)
    m = magnitude(x)
    more = (ok & (m > least)).to(tl.int32)
    same = (ok & (m == least)).to(tl.int32)
    nth_more = more_before + tl.cumsum(more, axis=0) - more
    nth_same = same_before + tl.cumsum(same, axis=0) - same
    keep = (more == 1) | ((same == 1) & (nth_same < ties))
    to = nth_more + tl.minimum(nth_same, ties)
    if SLOTS:
        index = tl.load(slot_indices + at, mask=keep, other=0)
    else:
        index = begin + at
    tl.store(to_indices + to, index, mask=keep)
    tl.store(to_values + to, x, mask=keep)
