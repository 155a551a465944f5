"""sampled_topk: a threshold from a sample, as csrc/codecs/sparse/sampled_topk.cpp with ``resample``.

The threshold is the rank-th largest magnitude of a strided sample, which select.py's digits find. It is lowered
where too few elements reach it. Then the first k that reach it are kept, or all if they are fewer; but where too
many do, the k largest, as select.py chooses them.

A second table has a row for each tensor's sample, with the fields of table.py: RESIDUAL points to the sampled
elements, NUMEL counts them, KEPT is the rank. A stride of 0 stands for no sample: the choice is exact.
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import INF, bits_of, float_of, magnitude
from gradcomp_torch.gpu.kernels.random import draw
from gradcomp_torch.gpu.kernels.select import (
    CANDIDATES,
    COUNT,
    ENDED,
    EXACT,
    GUESS,
    PREFIX,
    STATE,
    THRESHOLD,
    ends_last,
    slots_of,
    tile_of,
)
from gradcomp_torch.gpu.kernels.table import (
    BETA,
    FACTOR,
    FIRST_SPAN,
    GAMMA,
    KEPT,
    NUMEL,
    RESIDUAL,
    STREAM,
    STRIDE,
    floats,
    real,
    row_of,
    span_of,
    whole,
)

# Fields of a sample's row with another meaning.
FEWEST = BETA  # where fewer elements reach a threshold, it is lowered
MOST = GAMMA  # where more do, it is not used
LOWER = FACTOR  # by which thresholds are lowered

OPEN = tl.constexpr(-2)  # instead of a threshold: slots do not tell how many elements reach it


@triton.jit
def sample_kernel(table, samples, tensors, state, B: tl.constexpr):
    """Copies a tensor's sample, which begins at a random place, and sets its state back. 8 bytes for each of
    its elements, 4 of them at scattered addresses.

    An element beyond the end of the tensor is 0, which is less than the threshold.
    """
    block = tl.program_id(0)
    tensor = tl.load(tensors + block)
    row, sample = row_of(table, tensor), row_of(samples, tensor)
    stride = whole(sample, STRIDE)
    wide = stride.to(tl.uint64)
    start = tl.umulhi(draw(tl.load(row + STREAM), wide * 0), wide).to(tl.int32)
    first = whole(sample, FIRST_SPAN)
    i = (block - first) * B + tl.arange(0, B)
    at = start + i * stride
    ok = i < whole(sample, NUMEL)
    x = tl.load(floats(row, RESIDUAL) + at, mask=ok & (at < whole(row, NUMEL)), other=0.0)
    tl.store(floats(sample, RESIDUAL) + i, x, mask=ok)
    if block == first:
        fields = tl.arange(0, STATE)
        tl.store(state + tensor * STATE + fields, tl.zeros_like(fields))


@triton.jit
def adapt_kernel(
    table,
    samples,
    tensors,
    state,
    state_of_samples,
    counts,
    slot_values,
    missed,
    kept,
    LAST: tl.constexpr,
    WHOLE: tl.constexpr,
    BINS: tl.constexpr,
    SPAN: tl.constexpr,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Counts a span's elements between thresholds; the tensor's last program chooses one of these.

    The first launch reads slots, and tiles with too few of them, which tell of thresholds above the guess. Where these
    do not suffice, the second one, with WHOLE, reads all elements: 4 bytes each.

    Args:
        missed: BINS numbers for each tensor, before and after the launch zeros.
        kept: where the tensors' numbers of kept elements go.
        LAST: largest number of times that a threshold is lowered; below BINS.
    """
    tensor, row, first, begin, end = span_of(table, tensors, SPAN, TILE)
    sample = row_of(samples, tensor)
    of = state + tensor * STATE
    chosen = tl.load(of + THRESHOLD) if WHOLE else OPEN
    if chosen != OPEN:
        return
    highest = tl.minimum(tl.load(state_of_samples + tensor * STATE + PREFIX), INF - 1)
    factor = real(sample, LOWER)
    found = tl.zeros((BINS,), tl.int32)
    if WHOLE:
        known = highest * 0  # the least threshold for which all elements are counted
        for tile in range(begin, end):
            x, _, ok = tile_of(row, tile, TILE)
            found += tl.histogram(_missed(magnitude(x), highest, factor, LAST), BINS, mask=ok)
    else:
        known = tl.load(of + GUESS)
        slots, filled, whole_tiles = slots_of(counts, slot_values, first, begin, end, SPAN, ROOM)
        x = tl.reshape(tl.load(slots, mask=filled, other=0.0), (SPAN * ROOM,))
        ok = tl.reshape(filled, (SPAN * ROOM,))
        found += tl.histogram(_missed(magnitude(x), highest, factor, LAST), BINS, mask=ok)
        if whole_tiles > 0:
            for tile in range(begin, end):
                if tl.load(counts + first + tile) > ROOM:
                    y, _, exists = tile_of(row, tile, TILE)
                    missed_by = _missed(magnitude(y), highest, factor, LAST)
                    found += tl.histogram(missed_by, BINS, mask=exists)
    place = tl.arange(0, BINS)
    bins = missed + tensor * BINS + place
    tl.atomic_add(bins, found, mask=found > 0, sem="relaxed")
    if ends_last(row, of, SPAN, TILE):
        tl.store(of + ENDED, 0)
        counted = tl.load(bins, cache_modifier=".cg")
        tl.store(bins, tl.zeros_like(counted))
        reached = tl.cumsum(counted, axis=0)
        candidates = tl.load(of + CANDIDATES)
        k = whole(row, KEPT)
        count = k
        chosen = tl.where(whole(sample, STRIDE) == 0, EXACT, OPEN)
        # Whether all thresholds so far are known, and too few elements reach them.
        goes_on = tl.where(chosen == OPEN, 1, 0)
        threshold = highest
        for i in range(LAST + 1):
            is_known = tl.where(threshold >= known, 1, 0)
            # Elements that reach the guess also reach a threshold below it: at least that many do.
            number = tl.where(
                is_known == 1, tl.sum(tl.where(place == i, reached, 0), axis=0), candidates
            )
            many = number > whole(sample, MOST)
            few = tl.where(number < whole(sample, FEWEST), tl.where(i < LAST, 1, 0), 0)
            decides = goes_on * tl.where(many, 1, is_known * (1 - few)) == 1
            count = tl.where(decides, tl.where(many, k, tl.minimum(number, k)), count)
            chosen = tl.where(decides, tl.where(many, EXACT, threshold), chosen)
            goes_on = tl.where(decides, 0, goes_on * is_known)
            threshold = _lowered(threshold, factor)
        tl.store(of + THRESHOLD, chosen)
        tl.store(of + COUNT, count)
        tl.store(kept + tensor, count)
        if chosen >= 0:  # the next kernels read slots, or all elements
            tl.store(of + CANDIDATES, 0 if WHOLE else k)


@triton.jit
def _missed(m, threshold, factor, LAST: tl.constexpr):
    """How many thresholds magnitudes do not reach: the first ones, as thresholds do not rise."""
    missed = tl.zeros_like(m)
    for _ in range(LAST + 1):
        missed += (m < threshold).to(tl.int32)
        threshold = _lowered(threshold, factor)
    return missed


@triton.jit
def _lowered(threshold, factor):
    return bits_of(float_of(threshold) * factor).to(tl.int32)
