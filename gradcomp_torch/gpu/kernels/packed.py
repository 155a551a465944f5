"""Indices of kept elements in messages between devices, packed as in Elias-Fano lists.

Of k ascending indices below n, the lower `LOW` bits of each lie side by side. Its upper bits, a number `high`,
are bit `high + i` of index i. The number of 32-bit words follows from n and k: those of the upper bits come first,
then those of the lower. Elias, "Efficient Storage and Retrieval by Content and Address of Static Files" (1974).
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.select import COUNT as CHOSEN
from gradcomp_torch.gpu.kernels.select import STATE
from gradcomp_torch.gpu.kernels.table import (
    FIRST_BLOCK,
    LOW,
    OUT,
    PACKED,
    UPPER,
    row_of,
    whole,
)

# Fields of a table for unpacking, a row for each tensor of each rank.
FIELDS = tl.constexpr(7)
WORDS_AT = tl.constexpr(0)  # pointer to the packed words
INDICES_AT = tl.constexpr(1)  # pointer to int32 for the indices
COUNT = tl.constexpr(2)  # number of indices
LOW_BITS = tl.constexpr(3)
UPPER_WORDS = tl.constexpr(4)
FIRST = tl.constexpr(5)  # number of the row's first block of words in the launch
COUNTS_AT = tl.constexpr(6)  # pointer to int32 for each of its blocks


@triton.jit
def pack_kernel(table, tensors, state, indices, words, B: tl.constexpr):
    """Sets the bits of indices in words that are 0; one more follows the last list."""
    block = tl.program_id(0)
    tensor = tl.load(tensors + block)
    row = row_of(table, tensor)
    i = (block - whole(row, FIRST_BLOCK)) * B + tl.arange(0, B)
    ok = i < tl.load(state + tensor * STATE + CHOSEN)
    low_bits = whole(row, LOW)
    index = tl.load(indices + tl.load(row + OUT) + i, mask=ok, other=0)
    upper = words + tl.load(row + PACKED)
    place = (index >> low_bits) + i
    tl.atomic_or(upper + place // 32, _bit(place % 32), mask=ok, sem="relaxed")
    lower = upper + whole(row, UPPER)
    low = (index & ((1 << low_bits) - 1)).to(tl.uint32)
    begin = i * low_bits
    shift = begin % 32
    head = (low << shift.to(tl.uint32)).to(tl.int32, bitcast=True)
    tl.atomic_or(lower + begin // 32, head, mask=ok, sem="relaxed")
    beyond = shift + low_bits > 32
    rest = (low >> tl.where(beyond, 32 - shift, 0).to(tl.uint32)).to(tl.int32, bitcast=True)
    tl.atomic_or(lower + begin // 32 + 1, rest, mask=ok & beyond, sem="relaxed")


@triton.jit
def _bit(place):
    return (tl.full(place.shape, 1, tl.uint32) << place.to(tl.uint32)).to(tl.int32, bitcast=True)


@triton.jit
def _set_bits(words):
    """Number of bits that are set, of uint32."""
    pairs = words - ((words >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    eights = (fours + (fours >> 4)) & 0x0F0F0F0F
    sixteens = eights + (eights >> 8)
    return ((sixteens + (sixteens >> 16)) & 0x3F).to(tl.int32)


@triton.jit
def _words(table, tensors, W: tl.constexpr):
    """Of a program of an unpacking launch: its row, its block there, its words, and their places."""
    program = tl.program_id(0)
    row = table + tl.load(tensors + program).to(tl.int64) * FIELDS
    block = program - whole(row, FIRST)
    at = block * W + tl.arange(0, W)
    ok = at < whole(row, UPPER_WORDS)
    upper = tl.load(row + WORDS_AT).to(tl.pointer_type(tl.int32))
    word = tl.load(upper + at, mask=ok, other=0).to(tl.uint32, bitcast=True)
    return row, block, word, at


@triton.jit
def count_bits_kernel(table, tensors, W: tl.constexpr):
    """Counts the set bits of each block of upper words."""
    row, block, word, _ = _words(table, tensors, W)
    counts = tl.load(row + COUNTS_AT).to(tl.pointer_type(tl.int32))
    tl.store(counts + block, tl.sum(_set_bits(word), axis=0))


@triton.jit
def unpack_kernel(table, tensors, W: tl.constexpr, SUMMED: tl.constexpr):
    """Writes the indices. Of damaged words some are wrong, or missing, but none is written elsewhere."""
    row, block, word, at = _words(table, tensors, W)
    counts = tl.load(row + COUNTS_AT).to(tl.pointer_type(tl.int32))
    before = block * 0
    for begin in range(0, block, SUMMED):
        other = begin + tl.arange(0, SUMMED)
        before += tl.sum(tl.load(counts + other, mask=other < block, other=0), axis=0)
    bits = _set_bits(word)
    first = before + tl.cumsum(bits, axis=0) - bits
    count, low_bits = whole(row, COUNT), whole(row, LOW_BITS)
    lower = tl.load(row + WORDS_AT).to(tl.pointer_type(tl.int32)) + whole(row, UPPER_WORDS)
    indices = tl.load(row + INDICES_AT).to(tl.pointer_type(tl.int32))
    ones = tl.full(word.shape, 1, tl.uint32)
    for bit in tl.static_range(32):
        i = first + _set_bits(word & ((ones << bit) - 1))
        ok = (((word >> bit) & 1) != 0) & (i < count)
        begin = i * low_bits
        shift = begin % 32
        head = tl.load(lower + begin // 32, mask=ok, other=0).to(tl.uint32, bitcast=True)
        beyond = ok & (shift + low_bits > 32)
        rest = tl.load(lower + begin // 32 + 1, mask=beyond, other=0).to(tl.uint32, bitcast=True)
        up = tl.where(beyond, 32 - shift, 0).to(tl.uint32)
        low = (head >> shift.to(tl.uint32)) | tl.where(beyond, rest << up, 0)
        low = (low & ((ones << low_bits.to(tl.uint32)) - 1)).to(tl.int32, bitcast=True)
        high = at * 32 + bit - i
        tl.store(indices + i, (high << low_bits) | low, mask=ok)
