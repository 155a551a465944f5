"""A bucket's kept elements, sorted into messages for the owners of its shares; see `gradcomp.codec.shares`.

A share has the elements of a bucket in their order, and so have messages. Programs count their elements by share; a
program for each share adds these numbers up; then each element has a place. No program waits for another.

Both tables have a row for each tensor. Positions in a bucket have 32 bits.
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import (
    INF,
    bfloat_bits,
    float_of,
    half_bits,
    magnitude,
    zero_nonfinite,
)
from gradcomp_torch.gpu.kernels.select import COUNT as CHOSEN
from gradcomp_torch.gpu.kernels.select import STATE
from gradcomp_torch.gpu.kernels.table import floats, whole
from gradcomp_torch.gpu.kernels.value_types import FP16, FP32, rounded

FIELDS = tl.constexpr(7)
BASE = tl.constexpr(0)  # the tensor's first position in the bucket
RESIDUAL = tl.constexpr(1)  # pointer to float32; 0: there is none
FIRST = tl.constexpr(2)  # number of the tensor's first program in the launch

# Of elements to send.
INDICES = tl.constexpr(3)  # pointer to int32, ascending
VALUES = tl.constexpr(4)  # pointer to float32
NUMBER = tl.constexpr(5)  # pointer to int32: number of kept elements

# Of averages.
OUT = tl.constexpr(3)  # pointer to float32
NUMEL = tl.constexpr(4)  # of the tensor


@triton.jit
def _row(table, tensors):
    """The row of a program's tensor, and the program's number there."""
    program = tl.program_id(0)
    row = table + tl.load(tensors + program).to(tl.int64) * FIELDS
    return row, program - whole(row, FIRST)


@triton.jit
def _place(position, ranks, BLOCK: tl.constexpr):
    """The owner of a position in the bucket, and its position in the share."""
    block = position // BLOCK
    turn = block // ranks
    return (block + turn) % ranks, turn * BLOCK + position % BLOCK


@triton.jit
def _kept(table, tensors, ranks, TYPE: tl.constexpr, BLOCK: tl.constexpr, B: tl.constexpr):
    """The row of a program's tensor, the indices of its kept elements there, their values as they arrive, their owners,
    their positions in the share, and which of them exist and are not 0."""
    row, program = _row(table, tensors)
    i = program * B + tl.arange(0, B)
    ok = i < tl.load(tl.load(row + NUMBER).to(tl.pointer_type(tl.int32)))
    index = tl.load(tl.load(row + INDICES).to(tl.pointer_type(tl.int32)) + i, mask=ok, other=0)
    value = rounded(tl.load(floats(row, VALUES) + i, mask=ok, other=0.0), TYPE)
    owner, place = _place(whole(row, BASE) + index, ranks, BLOCK)
    return row, index, value, owner, place, ok & (magnitude(value) != 0)


@triton.jit
def count_shares_kernel(
    table,
    tensors,
    counts,
    not_finite,
    ranks,
    TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    OWNERS: tl.constexpr,
    B: tl.constexpr,
):
    """Counts a program's elements by share, and those that are NaN or Inf.

    Args:
        counts, not_finite: int32, [programs, ranks].
        OWNERS: at least ``ranks``.
    """
    _, _, value, owner, _, ok = _kept(table, tensors, ranks, TYPE, BLOCK, B)
    share = tl.arange(0, OWNERS)
    to = tl.program_id(0) * ranks + share
    exists = share < ranks
    tl.store(counts + to, tl.histogram(owner, OWNERS, mask=ok), mask=exists)
    wild = ok & (magnitude(value) >= INF)
    tl.store(not_finite + to, tl.histogram(owner, OWNERS, mask=wild), mask=exists)


@triton.jit
def scan_shares_kernel(
    counts,
    not_finite,
    state,
    spoiled,
    messages,
    size,
    slots,
    programs,
    rank,
    ranks,
    B: tl.constexpr,
):
    """Replaces a share's counts by sums of those before, and writes how many elements its message has.

    Args:
        state: as in select.py, of each share.
        spoiled: int32 of each share: the last element of its message becomes NaN; never of this rank's.
        messages: where the number of the first one is, as int32; they are ``size`` bytes apart.
    """
    share = tl.program_id(0)
    total = share * 0
    wild = share * 0
    for first in range(0, programs, B):
        program = first + tl.arange(0, B)
        ok = program < programs
        at = program * ranks + share
        count = tl.load(counts + at, mask=ok, other=0)
        tl.store(counts + at, total + tl.cumsum(count, axis=0) - count, mask=ok)
        total += tl.sum(count, axis=0)
        wild += tl.sum(tl.load(not_finite + at, mask=ok, other=0), axis=0)
    number = tl.minimum(total, slots)
    tl.store(messages + share.to(tl.int64) * (size // 4), number)
    tl.store(state + share * STATE + CHOSEN, number)
    tl.store(spoiled + share, ((total > slots) & (wild > 0) & (share != rank)).to(tl.int32))


@triton.jit
def place_kernel(
    table,
    tensors,
    counts,
    spoiled,
    positions,
    values,
    late,
    size,
    slots,
    rank,
    ranks,
    TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    B: tl.constexpr,
):
    """Writes the elements of each share that have a slot, and adds the others to the residual; those of this rank's
    share go to ``late``.

    Args:
        counts: of elements in the programs before.
        positions: int32, [ranks, slots].
        values: where the values of the first message are, as uint8; messages are ``size`` bytes apart.
        late: float32 of the share's elements, zeros.
    """
    row, index, value, owner, place, ok = _kept(table, tensors, ranks, TYPE, BLOCK, B)
    slot = owner * 0
    for share in range(ranks):
        hit = ok & (owner == share)
        before = tl.load(counts + tl.program_id(0) * ranks + share)
        slot = tl.where(hit, before + tl.cumsum(hit.to(tl.int32), axis=0) - 1, slot)
    fits = ok & (slot < slots)
    last = fits & (slot == slots - 1)
    spoils = tl.load(spoiled + owner, mask=last, other=0) != 0
    sent = tl.where(spoils, float_of(tl.full((B,), 0x7FC00000, tl.uint32)), value)
    tl.store(positions + owner.to(tl.int64) * slots + slot, place, mask=fits)
    message = values + owner.to(tl.int64) * size
    if TYPE == FP32:
        tl.store(message.to(tl.pointer_type(tl.float32)) + slot, sent, mask=fits)
    else:
        half = half_bits(sent, True) if TYPE == FP16 else bfloat_bits(sent)
        tl.store(message.to(tl.pointer_type(tl.uint16)) + slot, half, mask=fits)
    beyond = ok & (slot >= slots)
    tl.store(late + place, value, mask=beyond & (owner == rank))
    if tl.load(row + RESIDUAL) != 0:
        _add(floats(row, RESIDUAL) + index, value, beyond & (owner != rank))


@triton.jit
def _add(to, x, ok):
    """Adds to a residual; NaN and Inf then become 0."""
    tl.store(to, zero_nonfinite(tl.load(to, mask=ok, other=0.0) + x), mask=ok)


@triton.jit
def collect_shares_kernel(
    table,
    tensors,
    averages,
    lost,
    size,
    rank,
    ranks,
    BLOCK: tl.constexpr,
    B: tl.constexpr,
):
    """Writes the averages of all shares to tensors; the residual gets what this rank has lost, times ``ranks``.

    8 bytes per element, and 12 of this rank's share.

    Args:
        averages: float32, [ranks, size].
        lost: float32, [size].
    """
    row, program = _row(table, tensors)
    i = program * B + tl.arange(0, B)
    ok = i < whole(row, NUMEL)
    owner, place = _place(whole(row, BASE) + i, ranks, BLOCK)
    average = tl.load(averages + owner.to(tl.int64) * size + place, mask=ok, other=0.0)
    tl.store(floats(row, OUT) + i, average, mask=ok)
    if tl.load(row + RESIDUAL) != 0:
        own = ok & (owner == rank)
        x = tl.load(lost + place, mask=own, other=0.0) * (i * 0 + ranks).to(tl.float32)
        _add(floats(row, RESIDUAL) + i, x, own)
