"""Decoded frames are added to averages: ``acc += weight * value``, each step rounded.

Kept elements in a launch for each rank. Payloads of several ranks in one, in rank order: sums stay in registers, so
that an average is read and written once. The table has a row for each tensor of each rank, one rank after the other.
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import float_from_bfloat, float_from_half
from gradcomp_torch.gpu.kernels.rotate import block_or_rest, flip, hadamard
from gradcomp_torch.gpu.kernels.table import floats, real, whole
from gradcomp_torch.gpu.kernels.value_types import FP16, FP32

FIELDS = tl.constexpr(13)
ACC = tl.constexpr(0)  # pointer to float32
VALUES = tl.constexpr(1)  # pointer to kept values, or to a payload, which is aligned to 16 bytes
INDICES = tl.constexpr(2)  # pointer to int32
COUNT = tl.constexpr(3)  # elements to add
FIRST = tl.constexpr(4)  # number of the tensor's first block in the launch
WEIGHT = tl.constexpr(5)  # bits of float32

# Of a rotation.
STREAM = tl.constexpr(6)
LOG2 = tl.constexpr(7)  # of the elements of a block
FACTOR = tl.constexpr(8)  # bits of float32
SHARED = tl.constexpr(9)  # pointer to float32 for a block's elements, if the tensor has a rest

# Of kept elements in messages: see kept.py.
NUMEL = tl.constexpr(10)  # of the tensor
COUNTED = tl.constexpr(11)  # pointer to int32: number of elements to add, at most COUNT
MESSAGE = tl.constexpr(12)  # number of the message

# `START` of a launch: payloads are added to what is there, or to 0, or take its place, also where they are -0.0.
HELD = tl.constexpr(0)
ZERO = tl.constexpr(1)
NONE = tl.constexpr(2)


@triton.jit
def _place(table, tensors):
    """Of a program: its tensor, the tensor's row of the first rank, and its block there."""
    block = tl.program_id(0)
    tensor = tl.load(tensors + block)
    row = row_of_rank(table, tensor, 0, 0)
    return tensor, row, block - whole(row, FIRST)


@triton.jit
def row_of_rank(table, tensor, rank, count):
    """The row of a tensor of a rank; each rank has ``count`` tensors."""
    return table + (rank * count + tensor).to(tl.int64) * FIELDS


@triton.jit
def add_kept_kernel(table, tensors, B: tl.constexpr):
    """Adds kept elements. 16 bytes each, 8 of them at scattered addresses.

    Indices of a frame differ, so nothing is added atomically.
    """
    _, row, block = _place(table, tensors)
    i = block * B + tl.arange(0, B)
    ok = i < whole(row, COUNT)
    index = tl.load(tl.load(row + INDICES).to(tl.pointer_type(tl.int32)) + i, mask=ok, other=0)
    value = tl.load(floats(row, VALUES) + i, mask=ok, other=0.0)
    to = floats(row, ACC) + index
    tl.store(to, tl.load(to, mask=ok, other=0.0) + real(row, WEIGHT) * value, mask=ok)


@triton.jit
def compare_headers_kernel(pointers, damaged):
    """Sets a message's flag: 1 where its header of 16 bytes differs from what it should be, else 0.

    ``pointers`` has both headers of each message, ``damaged`` four numbers; the first one is the flag.
    """
    message = tl.program_id(0)
    found = tl.load(pointers + 2 * message).to(tl.pointer_type(tl.int64))
    expected = tl.load(pointers + 2 * message + 1).to(tl.pointer_type(tl.int64))
    differs = (tl.load(found) != tl.load(expected)) | (tl.load(found + 1) != tl.load(expected + 1))
    tl.store(damaged + 4 * message, differs.to(tl.int32))


@triton.jit
def _elements(row, block, B: tl.constexpr):
    """Number of elements, the elements of a program, and which of them exist."""
    n, i = whole(row, COUNT), block * B + tl.arange(0, B)
    return n, i, i < n


@triton.jit
def _begun(row, i, ok, START: tl.constexpr, B: tl.constexpr):
    """Sums to which the first rank's elements are added."""
    if START == HELD:
        total = tl.load(floats(row, ACC) + i, mask=ok, other=0.0)
    elif START == ZERO:
        total = tl.zeros((B,), tl.float32)
    else:
        total = tl.full((B,), -0.0, tl.float32)  # which leaves every number as it is
    return total


@triton.jit
def _end(row, i, ok, total):
    tl.store(floats(row, ACC) + i, total, mask=ok)


@triton.jit
def _byte(payload, at, ok):
    """The byte at a place, as int32."""
    return tl.load(payload.to(tl.pointer_type(tl.uint8)) + at, mask=ok, other=0).to(tl.int32)


@triton.jit
def _float(payload, at, ok):
    """The float32 that begins at a byte, a multiple of 4."""
    return tl.load(payload.to(tl.pointer_type(tl.float32)) + at // 4, mask=ok, other=0.0)


@triton.jit
def add_floats_kernel(
    table, tensors, ranks, count, TYPE: tl.constexpr, START: tl.constexpr, B: tl.constexpr
):
    """Adds payloads of identity, fp16 or bf16. 4 bytes per element and rank of identity, else 2."""
    tensor, row, block = _place(table, tensors)
    _, i, ok = _elements(row, block, B)
    total = _begun(row, i, ok, START, B)
    for rank in range(ranks):
        of_rank = row_of_rank(table, tensor, rank, count)
        total += real(of_rank, WEIGHT) * values_of(of_rank, i, ok, TYPE)
    _end(row, i, ok, total)


@triton.jit
def values_of(row, i, ok, TYPE: tl.constexpr):
    """Values of 4 or 2 bytes as float32."""
    if TYPE == FP32:
        value = tl.load(floats(row, VALUES) + i, mask=ok, other=0.0)
    else:
        half = tl.load(tl.load(row + VALUES).to(tl.pointer_type(tl.uint16)) + i, mask=ok, other=0)
        value = float_from_half(half) if TYPE == FP16 else float_from_bfloat(half)
    return value


@triton.jit
def add_bits_kernel(
    table, tensors, ranks, count, ONE_BIT: tl.constexpr, START: tl.constexpr, B: tl.constexpr
):
    """Adds payloads of sign, or of onebit. 0.1 bytes per element and rank."""
    tensor, row, block = _place(table, tensors)
    _, i, ok = _elements(row, block, B)
    HEAD: tl.constexpr = 8 if ONE_BIT else 4
    total = _begun(row, i, ok, START, B)
    for rank in range(ranks):
        of_rank = row_of_rank(table, tensor, rank, count)
        payload = tl.load(of_rank + VALUES)
        negative = (_byte(payload, HEAD + i // 8, ok) >> (i % 8)) & 1
        scales = payload.to(tl.pointer_type(tl.float32))
        if ONE_BIT:
            value = tl.where(negative != 0, tl.load(scales), tl.load(scales + 1))
        else:
            value = tl.where(negative != 0, -tl.load(scales), tl.load(scales))
        total += real(of_rank, WEIGHT) * value
    _end(row, i, ok, total)


@triton.jit
def add_ternary_kernel(table, tensors, ranks, count, START: tl.constexpr, B: tl.constexpr):
    """Adds payloads of terngrad. 0.2 bytes per element and rank.

    Byte j of a block of 1280 elements has the elements j, j + 256, ...; the last block is shorter.
    """
    tensor, row, block = _place(table, tensors)
    n, i, ok = _elements(row, block, B)
    begin = i // 1280 * 1280
    total = _begun(row, i, ok, START, B)
    if (block + 1) * B <= n // 1280 * 1280:  # no division by a size that is not known here
        for rank in range(ranks):
            of_rank = row_of_rank(table, tensor, rank, count)
            value = _ternary(tl.load(of_rank + VALUES), i, begin, 256, ok)
            total += real(of_rank, WEIGHT) * value
    else:
        size = tl.where(ok, tl.minimum(256, (n - begin + 4) // 5), 1)
        for rank in range(ranks):
            of_rank = row_of_rank(table, tensor, rank, count)
            value = _ternary(tl.load(of_rank + VALUES), i, begin, size, ok)
            total += real(of_rank, WEIGHT) * value
    _end(row, i, ok, total)


@triton.jit
def _ternary(payload, i, begin, size, ok):
    part = (i - begin) // size
    byte = _byte(payload, 4 + begin // 5 + (i - begin) % size, ok)
    power = tl.where(part == 0, 1, tl.where(part == 1, 3, tl.where(part == 2, 9, 27)))
    digit = byte // tl.where(part == 4, 81, power) % 3
    scale = tl.load(payload.to(tl.pointer_type(tl.float32)))
    return scale * (digit - 3 * (digit >> 1)).to(tl.float32)


@triton.jit
def add_integer_kernel(
    table,
    tensors,
    ranks,
    count,
    EACH: tl.constexpr,
    BUCKET: tl.constexpr,
    START: tl.constexpr,
    B: tl.constexpr,
):
    """Adds payloads of int8 (EACH level a byte) or int4 (EACH two). 1 or 0.5 bytes per element and rank."""
    tensor, row, block = _place(table, tensors)
    _, i, ok = _elements(row, block, B)
    STRIDE: tl.constexpr = 4 + BUCKET // EACH
    bucket = i // BUCKET * STRIDE
    total = _begun(row, i, ok, START, B)
    for rank in range(ranks):
        of_rank = row_of_rank(table, tensor, rank, count)
        payload = tl.load(of_rank + VALUES)
        byte = _byte(payload, bucket + 4 + i % BUCKET // EACH, ok)
        if EACH == 1:
            level = (byte ^ 0x80) - 0x80
        else:
            level = (((byte >> (i % 2 * 4)) & 0xF) ^ 0x8) - 0x8
        total += real(of_rank, WEIGHT) * (_float(payload, bucket, ok) * level.to(tl.float32))
    _end(row, i, ok, total)


@triton.jit
def _symbol(payload, i, scales, ok, BITS: tl.constexpr):
    """The symbol of an element, after ``scales`` scales."""
    EACH: tl.constexpr = 8 // BITS
    byte = _byte(payload, 4 * scales + i // EACH, ok)
    return (byte >> (i % EACH * BITS)) & ((1 << BITS) - 1)


@triton.jit
def add_qsgd_kernel(
    table,
    tensors,
    ranks,
    count,
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    BUCKET: tl.constexpr,
    START: tl.constexpr,
    B: tl.constexpr,
):
    """Adds payloads of qsgd. 1 byte per element and rank with 8 bits."""
    tensor, row, block = _place(table, tensors)
    n, i, ok = _elements(row, block, B)
    total = _begun(row, i, ok, START, B)
    for rank in range(ranks):
        of_rank = row_of_rank(table, tensor, rank, count)
        payload = tl.load(of_rank + VALUES)
        symbol = _symbol(payload, i, (n + BUCKET - 1) // BUCKET, ok, BITS)
        norm = _float(payload, 4 * (i // BUCKET), ok)
        unit = tl.div_rn(norm, tl.full((B,), LEVELS, tl.float32))
        level = (symbol >> 1) ^ -(symbol & 1)
        total += real(of_rank, WEIGHT) * (unit * level.to(tl.float32))
    _end(row, i, ok, total)


@triton.jit
def add_uniform_kernel(
    table,
    tensors,
    ranks,
    count,
    BITS: tl.constexpr,
    BUCKET: tl.constexpr,
    START: tl.constexpr,
    B: tl.constexpr,
):
    """Adds payloads of uniform. 0.5 bytes per element and rank with 4 bits."""
    tensor, row, block = _place(table, tensors)
    n, i, ok = _elements(row, block, B)
    TOP: tl.constexpr = (1 << BITS) - 1
    total = _begun(row, i, ok, START, B)
    for rank in range(ranks):
        of_rank = row_of_rank(table, tensor, rank, count)
        payload = tl.load(of_rank + VALUES)
        symbol = _symbol(payload, i, (n + BUCKET - 1) // BUCKET, ok, BITS)
        value = (2 * symbol - TOP).to(tl.float32) * _float(payload, 4 * (i // BUCKET), ok)
        total += real(of_rank, WEIGHT) * value
    _end(row, i, ok, total)


@triton.jit
def add_rotated_kernel(
    table,
    tensors,
    ranks,
    count,
    BITS: tl.constexpr,
    REST: tl.constexpr,
    START: tl.constexpr,
    B: tl.constexpr,
):
    """Adds a block of payloads of rotate|uniform; or a tensor's rest, in an earlier launch, which leaves
    the elements that it shares with the last block for it. 0.5 bytes per element and rank with 4 bits.

    B is kernels/rotate.py's BLOCK.
    """
    tensor, row, number = _place(table, tensors)
    n, log2 = whole(row, COUNT), whole(row, LOG2)
    block, i, inside, covered = block_or_rest(number, n, log2, REST)
    scales = (n >> log2) + tl.where(covered < n, 1, 0)
    TOP: tl.constexpr = (1 << BITS) - 1
    begin = n - (1 << log2)  # of the elements that a rest shares with the last block
    ends_here = inside & (i >= covered) if REST else inside
    total = _begun(row, i, ends_here, START, B)
    for rank in range(ranks):
        of_rank = row_of_rank(table, tensor, rank, count)
        payload = tl.load(of_rank + VALUES)
        symbol = _symbol(payload, i, scales, inside, BITS)
        x = (2 * symbol - TOP).to(tl.float32) * _scale(payload, block)
        shared = floats(of_rank, SHARED) + (i - begin)
        if not REST:
            tail = inside & (i >= tl.where(covered < n, begin, n))
            x = tl.where(tail, tl.load(shared, mask=tail, other=0.0), x)
        x = hadamard(tl.where(inside, x, 0.0), log2)
        x = flip(tl.load(of_rank + STREAM), real(of_rank, FACTOR), block, x)
        if REST:
            tl.store(shared, x, mask=inside & (i < covered))
            neighbour = _scale(payload, block - 1)
            x = tl.where(neighbour == neighbour, x, float("nan"))
        total += real(of_rank, WEIGHT) * x
    _end(row, i, ends_here, total)


@triton.jit
def _scale(payload, group):
    """A group's scale; NaN for one that no encoder makes, as in the core."""
    scale = tl.load(payload.to(tl.pointer_type(tl.float32)) + group)
    usable = tl.abs(scale) <= 1.2676506002282294e30  # 2^100
    return tl.where(usable, scale, float("nan"))
