"""Error feedback and the exact choice of each tensor's k elements of largest magnitude.

Magnitudes compare as integers; of equal ones the lower index is kept. Nothing waits for the device:
kernels read all decisions from a small state. In one pass over memory, each tile of the residual is
corrected, and its elements that reach a guess are copied to the tile's slots. Where a tensor's guess
found k elements, a radix selection of three digits reads the slots, and the whole tile where these are too few, as
in a row of large elements. Else it reads the whole residual: a bad guess costs time, never exactness.

After that pass four launches remain: two digits, the last digit with the numbers of elements before each place, and
the kept elements. A program has a *span* of several tiles of one tensor. The last program of a tensor that ends draws
the conclusion of a launch; no program waits for another.

Bytes per element with feedback: 12, and O(k) after a good guess, and 16 of tiles with too few slots; 28 after a bad
guess.
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import INF, MAGNITUDE, magnitude, zero_nonfinite
from gradcomp_torch.gpu.kernels.correct import CORRECTION, PLAIN, corrected, zero_tile
from gradcomp_torch.gpu.kernels.table import (
    FIRST_SPAN,
    FIRST_TILE,
    KEPT,
    MOMENTUM,
    NUMEL,
    OUT,
    RANK,
    RESIDUAL,
    RUNS,
    STRIDE,
    elements,
    floats,
    row_of,
    span_of,
    whole,
)
from gradcomp_torch.gpu.kernels.value_types import BF16, INT8, rounded

RUN = tl.constexpr(4)
"""Consecutive elements of a sample for a guess: few, so that it has many rows of a matrix."""

# Fields of a tensor's state, int32.
STATE = tl.constexpr(16)  # number of fields
PREFIX = tl.constexpr(0)  # upper digits of the k-th largest magnitude, at last all its bits
TAKEN = tl.constexpr(1)  # elements above the prefix; then k - TAKEN of those equal to it are kept
CANDIDATES = tl.constexpr(2)  # elements that reach the guess
NOT_FINITE = tl.constexpr(3)  # whether an element is NaN or Inf
GUESS = tl.constexpr(4)  # magnitude bits
ENDED = tl.constexpr(5)  # programs of the tensor that have ended in a launch
COUNT = tl.constexpr(6)  # number of kept elements
LARGEST = tl.constexpr(8)  # magnitude bits of the largest kept element, for values=int8
SCALES = tl.constexpr(8)  # four float32 that decode kept values, as bits
THRESHOLD = tl.constexpr(
    12
)  # of sampled_topk, magnitude bits: the first k elements that reach it are kept
EXACT = tl.constexpr(-1)  # instead of a threshold: the k largest elements are kept


@triton.jit
def guess_kernel(
    table,
    state,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    S: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Sets the state back; its guess is a magnitude that a little more than k should reach.

    Bisects the upper STEPS bits of at most S sampled elements. A program for each tensor.
    """
    tensor = tl.program_id(0)
    row = row_of(table, tensor)
    at = tl.arange(0, S)
    # A stride has 32 bits, and so has every sampled index.
    i = (at // RUN) * whole(row, STRIDE) + at % RUN
    ok = (at // RUN < whole(row, RUNS)) & (i < whole(row, NUMEL))
    x = corrected(row, i, ok, MODE, GRAD_TYPE, False, False, False)
    m = tl.where(ok, magnitude(x), -1)
    rank = whole(row, RANK)
    low = rank * 0
    for step in tl.static_range(STEPS):
        middle = low + (1 << (30 - step))
        reached = tl.sum((m >= middle).to(tl.int32), axis=0)
        low = tl.where(reached >= rank, middle, low)
    fields = tl.arange(0, STATE)
    other = tl.where(fields == COUNT, whole(row, KEPT), 0)
    tl.store(state + tensor * STATE + fields, tl.where(fields == GUESS, low, other))


@triton.jit
def collect_kernel(
    table,
    tensors,
    state,
    counts,
    slot_indices,
    slot_values,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Corrects a tile, and copies its elements that reach the guess to its slots, in order: the first ones, where
    there are more than slots. ``counts`` gets their number."""
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
            GRAD_TYPE,
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
            GRAD_TYPE,
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
    GRAD_TYPE: tl.constexpr,
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
    x = corrected(row, i, ok, MODE, GRAD_TYPE, True, False, ALIGNED)
    if MODE != PLAIN:
        tl.store(elements(row, RESIDUAL, i, ALIGNED), x, mask=ok)
    m = magnitude(x)
    hit = ok & (m >= tl.load(state + GUESS))
    not_finite = ok & (m >= INF)
    # Two counts in one reduction; a tile has less than 2^16 elements.
    both = tl.sum(hit.to(tl.int32) + (not_finite.to(tl.int32) << 16), axis=0)
    if both >> 16 != 0:
        tl.atomic_or(state + NOT_FINITE, 1, sem="relaxed")
    found = both & 0xFFFF
    at = tl.cumsum(hit.to(tl.int32), axis=0) - 1
    tl.store(counts + tile, found)
    slot = tile.to(tl.int64) * ROOM + at
    fits = hit & (at < ROOM)
    tl.store(slot_indices + slot, i, mask=fits)
    tl.store(slot_values + slot, x, mask=fits)
    tl.atomic_add(state + CANDIDATES, found, sem="relaxed")


@triton.jit
def has_candidates(state, k):
    """Whether the tensor's k largest elements reach the guess."""
    return tl.load(state + CANDIDATES) >= k


@triton.jit
def ends_last(row, state, SPAN: tl.constexpr, TILE: tl.constexpr):
    """Whether all other programs of the tensor have ended. They have written by then all that they write."""
    tl.debug_barrier()  # all threads of this program have written, too
    ended = tl.atomic_add(state + ENDED, 1, sem="acq_rel")
    return ended == _spans(row, SPAN, TILE) - 1


@triton.jit
def _spans(row, SPAN: tl.constexpr, TILE: tl.constexpr):
    """Number of the tensor's spans."""
    return (whole(row, NUMEL) + SPAN * TILE - 1) // (SPAN * TILE)


@triton.jit
def slots_of(counts, slots, first, begin, end, SPAN: tl.constexpr, ROOM: tl.constexpr):
    """Pointers to the slots of a span's tiles, [SPAN, ROOM], which of them are filled, and the number of tiles that
    had too few: none of theirs counts as filled."""
    tile = begin + tl.arange(0, SPAN)
    count = tl.load(counts + first + tile, mask=tile < end, other=0)
    overflows = count > ROOM
    count = tl.where(overflows, 0, count)
    at = tl.arange(0, ROOM)
    slot = (first + tile).to(tl.int64) * ROOM
    pointers = slots + slot[:, None] + at[None, :]
    return pointers, at[None, :] < count[:, None], tl.sum(overflows.to(tl.int32), axis=0)


@triton.jit
def tile_of(row, tile, TILE: tl.constexpr):
    """A tile's elements, their indices, and which of them exist."""
    i = tile * TILE + tl.arange(0, TILE)
    ok = i < whole(row, NUMEL)
    return tl.load(floats(row, RESIDUAL) + i, mask=ok, other=0.0), i, ok


@triton.jit
def digits_kernel(
    table,
    tensors,
    state,
    counts,
    slot_values,
    histogram,
    SAMPLED: tl.constexpr,
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    BINS: tl.constexpr,
    SPAN: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
):
    """A pass of the radix selection: counts the next digits of magnitudes that begin with the prefix, and
    appends the digit of the k-th largest to it. See also `count_kernel`.

    `histogram` has BINS numbers for each tensor, before and after the pass zeros. With SAMPLED there is
    nothing to do where a threshold is known.
    """
    tensor, row, first, begin, end = span_of(table, tensors, SPAN, TILE)
    of = state + tensor * STATE
    threshold = tl.load(of + THRESHOLD) if SAMPLED else EXACT
    if threshold >= 0:
        return
    prefix = tl.load(of + PREFIX)
    found = tl.zeros((1 << BITS,), tl.int32)
    whole_tiles = end - begin
    most = whole_tiles * 0 - 1  # candidates of tiles whose slots are read
    if has_candidates(of, whole(row, KEPT)):
        slots, filled, whole_tiles = slots_of(counts, slot_values, first, begin, end, SPAN, ROOM)
        kept = tl.reshape(tl.load(slots, mask=filled, other=0.0), (SPAN * ROOM,))
        found += _digits(kept, tl.reshape(filled, (SPAN * ROOM,)), prefix, SHIFT, BITS)
        most = most * 0 + ROOM
    if whole_tiles > 0:
        for tile in range(begin, end):
            if tl.load(counts + first + tile) > most:
                x, _, ok = tile_of(row, tile, TILE)
                found += _digits(x, ok, prefix, SHIFT, BITS)
    bins = histogram + tensor * BINS + tl.arange(0, 1 << BITS)
    tl.atomic_add(bins, found, mask=found > 0, sem="relaxed")
    if ends_last(row, of, SPAN, TILE):
        _pick(of, whole(row, KEPT), bins, BITS)


@triton.jit
def _digits(x, ok, prefix, SHIFT: tl.constexpr, BITS: tl.constexpr):
    m = magnitude(x)
    ok = ok & ((m >> (SHIFT + BITS)) == prefix)
    digit = (m >> SHIFT) & ((1 << BITS) - 1)
    return tl.histogram(digit, 1 << BITS, mask=ok)


@triton.jit
def _pick(state, k, bins, BITS: tl.constexpr):
    """Appends the digit of the k-th largest to the prefix, and sets histogram and ENDED back.

    The last digit leaves in TAKEN the number of larger elements. Returns the digit.
    """
    count = tl.load(bins, cache_modifier=".cg")
    taken = tl.load(state + TAKEN)
    above = taken + tl.sum(count, axis=0) - tl.cumsum(count, axis=0)
    at_digit = (above < k) & (k <= above + count)
    digit = tl.sum(tl.where(at_digit, tl.arange(0, 1 << BITS), 0), axis=0)
    tl.store(state + PREFIX, (tl.load(state + PREFIX) << BITS) | digit)
    tl.store(state + TAKEN, tl.sum(tl.where(at_digit, above, 0), axis=0))
    tl.store(state + ENDED, 0)
    tl.store(bins, tl.zeros_like(count))
    return digit


@triton.jit
def _limits(state, SAMPLED: tl.constexpr):
    """Magnitude bits: elements above the first are kept; of those from the second on, the first ones."""
    above = tl.load(state + PREFIX)
    least = above
    if SAMPLED:
        threshold = tl.load(state + THRESHOLD)
        above = tl.where(threshold >= 0, MAGNITUDE, above)
        least = tl.where(threshold >= 0, threshold, least)
    return above, least


@triton.jit
def count_kernel(
    table,
    tensors,
    state,
    counts,
    slot_values,
    histogram,
    reached,
    above,
    equal,
    SAMPLED: tl.constexpr,
    BITS: tl.constexpr,
    BINS: tl.constexpr,
    SPAN: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
    SCANNED: tl.constexpr,
):
    """The pass of the last digit, which also counts, in all spans of the tensor before each one, elements above the
    k-th largest and equal to it.

    With SAMPLED, where a threshold is known, those that reach it count as equal.

    `reached` gets a span's numbers of elements that reach the prefix with each last digit, and then of those above all
    of these. The last program picks the digit, and adds its numbers up, SCANNED spans at a time.
    """
    tensor, row, first, begin, end = span_of(table, tensors, SPAN, TILE)
    of = state + tensor * STATE
    threshold = tl.load(of + THRESHOLD) if SAMPLED else EXACT
    prefix = tl.load(of + PREFIX)
    largest = (prefix << BITS) | ((1 << BITS) - 1)  # that begins with the prefix
    if SAMPLED:
        largest = tl.where(threshold >= 0, threshold - 1, largest)
        prefix = tl.where(threshold >= 0, -1, prefix)  # no magnitude begins with it
    found = tl.zeros((1 << BITS,), tl.int32)
    number_above = prefix * 0
    whole_tiles = end - begin
    most = whole_tiles * 0 - 1  # candidates of tiles whose slots are read
    if has_candidates(of, whole(row, KEPT)):
        slots, filled, whole_tiles = slots_of(counts, slot_values, first, begin, end, SPAN, ROOM)
        kept = tl.reshape(tl.load(slots, mask=filled, other=0.0), (SPAN * ROOM,))
        present = tl.reshape(filled, (SPAN * ROOM,))
        found += _digits(kept, present, prefix, 0, BITS)
        number_above += tl.sum((present & (magnitude(kept) > largest)).to(tl.int32), axis=0)
        most = most * 0 + ROOM
    if whole_tiles > 0:
        for tile in range(begin, end):
            if tl.load(counts + first + tile) > most:
                x, _, ok = tile_of(row, tile, TILE)
                found += _digits(x, ok, prefix, 0, BITS)
                number_above += tl.sum((ok & (magnitude(x) > largest)).to(tl.int32), axis=0)
    digits = tl.arange(0, 1 << BITS)
    bins = histogram + tensor * BINS + digits
    tl.atomic_add(bins, found, mask=found > 0, sem="relaxed")
    NUMBERS: tl.constexpr = (1 << BITS) + 1
    to = reached + tl.program_id(0).to(tl.int64) * NUMBERS
    tl.store(to + digits, number_above + found + tl.sum(found, axis=0) - tl.cumsum(found, axis=0))
    tl.store(to + (1 << BITS), number_above)
    if ends_last(row, of, SPAN, TILE):
        digit = _pick(of, whole(row, KEPT), bins, BITS)
        if SAMPLED:
            digit = tl.where(threshold >= 0, 1 << BITS, digit)
        first_span = whole(row, FIRST_SPAN)
        numbers = reached + first_span.to(tl.int64) * NUMBERS + digit
        spans = _spans(row, SPAN, TILE)
        total_above = spans * 0
        total_equal = spans * 0
        for start in range(0, spans, SCANNED):
            i = start + tl.arange(0, SCANNED)
            ok = i < spans
            at = numbers + i.to(tl.int64) * NUMBERS
            reach = tl.load(at, mask=ok, other=0, cache_modifier=".cg")
            exceeds = ok & (i * 0 + digit < (1 << BITS))
            more = tl.load(at + 1, mask=exceeds, other=0, cache_modifier=".cg")
            total_above = _scan(above + first_span + i, more, ok, total_above)
            total_equal = _scan(equal + first_span + i, reach - more, ok, total_equal)


@triton.jit
def _scan(to, count, ok, total):
    """Stores of each count the sum of those before it, from a total on, and returns the sum of all."""
    tl.store(to, total + tl.cumsum(count, axis=0) - count, mask=ok)
    return total + tl.sum(count, axis=0)


@triton.jit
def _compared(x, ok, limit, least):
    """Whether elements are above the limit, and from the least on up to it, as int32."""
    m = magnitude(x)
    more = m > limit
    return (ok & more).to(tl.int32), (ok & (m >= least) & ~more).to(tl.int32)


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
    SAMPLED: tl.constexpr,
    TYPE: tl.constexpr,
    MODE: tl.constexpr,
    ALIGNED: tl.constexpr,
    MASKING: tl.constexpr,
    SPAN: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Writes the kept elements in ascending order of index.

    Values of a type without scales are subtracted from the residual here; others follow (pack.py). NaN and Inf in
    residual and momentum become 0: 8 bytes per element of each array in tensors that have some.
    """
    tensor, row, first, begin, end = span_of(table, tensors, SPAN, TILE)
    of = state + tensor * STATE
    k = whole(row, KEPT)
    limit, least = _limits(of, SAMPLED)
    ties = k - tl.load(of + TAKEN)
    kept = tl.load(row + OUT)
    indices += kept
    values += kept
    more_before = tl.load(above + tl.program_id(0))
    same_before = tl.load(equal + tl.program_id(0))
    from_slots = has_candidates(of, k)
    slots, filled, whole_tiles = slots_of(counts, slot_values, first, begin, end, SPAN, ROOM)
    if from_slots & (whole_tiles == 0):
        SIZE: tl.constexpr = SPAN * ROOM
        kept_values = tl.reshape(tl.load(slots, mask=filled, other=0.0), (SIZE,))
        present = tl.reshape(filled, (SIZE,))
        kept_more, kept_same = _compared(kept_values, present, limit, least)
        keeps, places, _ = _places(kept_more, kept_same, more_before, same_before, ties)
        index_slots, _, _ = slots_of(counts, slot_indices, first, begin, end, SPAN, ROOM)
        index = tl.load(tl.reshape(index_slots, (SIZE,)), mask=keeps, other=0)
        tl.store(indices + places, index, mask=keeps)
        tl.store(values + places, kept_values, mask=keeps)
        _subtract(row, of, index, kept_values, keeps, TYPE, MODE, MASKING)
    else:
        for tile in range(begin, end):
            count = tl.load(counts + first + tile)
            if from_slots & (count <= ROOM):
                at = tl.arange(0, ROOM)
                slot = (first + tile).to(tl.int64) * ROOM + at
                in_slot = at < count
                y = tl.load(slot_values + slot, mask=in_slot, other=0.0)
                slot_more, slot_same = _compared(y, in_slot, limit, least)
                keep, to, both = _places(slot_more, slot_same, more_before, same_before, ties)
                j = tl.load(slot_indices + slot, mask=keep, other=0)
                tl.store(indices + to, j, mask=keep)
                tl.store(values + to, y, mask=keep)
                _subtract(row, of, j, y, keep, TYPE, MODE, MASKING)
                more_before += both & 0xFFFF
                same_before += both >> 16
            else:
                x, i, ok = tile_of(row, tile, TILE)
                more, same = _compared(x, ok, limit, least)
                keeps_tile, to_tile, both_tile = _places(more, same, more_before, same_before, ties)
                tl.store(indices + to_tile, i, mask=keeps_tile)
                tl.store(values + to_tile, x, mask=keeps_tile)
                _subtract(row, of, i, x, keeps_tile, TYPE, MODE, MASKING)
                more_before += both_tile & 0xFFFF
                same_before += both_tile >> 16
    if MODE != PLAIN:
        _zero(row, of, begin, end, MODE, ALIGNED, TILE)


@triton.jit
def _zero(row, state, begin, end, MODE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """Resets NaN and Inf of tiles, if the tensor has some, which this program has read."""
    if tl.load(state + NOT_FINITE) != 0:
        tl.debug_barrier()  # all threads have read
        for tile in range(begin, end):
            zero_tile(row, tile, MODE, ALIGNED, TILE)


@triton.jit
def _subtract(row, state, i, x, ok, TYPE: tl.constexpr, MODE: tl.constexpr, MASKING: tl.constexpr):
    """With error feedback ``residual[i] = x - rounded x``, NaN and Inf as 0; with MASKING ``momentum[i] = 0``.

    Of values=int8, which follow, it finds the largest magnitude: a maximum of integers, so in any order.
    """
    if MODE != PLAIN and TYPE == INT8:
        largest = tl.max(tl.where(ok, magnitude(x), 0), axis=0)
        tl.atomic_max(state + LARGEST, largest, sem="relaxed")
    if MODE != PLAIN and TYPE <= BF16:
        tl.store(floats(row, RESIDUAL) + i, zero_nonfinite(x - rounded(x, TYPE)), mask=ok)
        if MASKING and MODE >= CORRECTION:
            tl.store(floats(row, MOMENTUM) + i, tl.zeros_like(x), mask=ok)


@triton.jit
def _places(more, same, more_before, same_before, ties):
    """Whether elements are kept, their places, and how many are above the k-th largest, and in the upper
    half equal to it.

    The place of element e is above(e) + min(equal(e), ties), which count the elements before it.
    """
    # Two sums in one; there are less than 2^16 elements.
    both = more + (same << 16)
    before = tl.cumsum(both, axis=0) - both
    nth_more = more_before + (before & 0xFFFF)
    nth_same = same_before + (before >> 16)
    keep = (more == 1) | ((same == 1) & (nth_same < ties))
    to = nth_more + tl.minimum(nth_same, ties)
    return keep, to, tl.sum(both, axis=0)
