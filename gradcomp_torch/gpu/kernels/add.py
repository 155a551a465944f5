"""Decoded frames are added to averages: ``acc += weight * value``, each step rounded.

A launch for each rank, in rank order. The table has a row for each tensor of it.
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import float_from_bfloat, float_from_half
from gradcomp_torch.gpu.kernels.rotate import block_or_rest, flip, hadamard
from gradcomp_torch.gpu.kernels.table import floats, real, whole
from gradcomp_torch.gpu.kernels.value_types import FP16, FP32

FIELDS = tl.constexpr(12)
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

# `START` of a launch: payloads are added to what is there, or to 0, or take its place, also where they are -0.0.
HELD = tl.constexpr(0)
ZERO = tl.constexpr(1)
NONE = tl.constexpr(2)


@triton.jit
def _row(table, tensors):
    block = tl.program_id(0)
    row = table + tl.load(tensors + block).to(tl.int64) * FIELDS
    return row, block - whole(row, FIRST)


@triton.jit
def add_kept_kernel(table, tensors, B: tl.constexpr):
    """Adds kept elements. 16 bytes each, 8 of them at scattered addresses.

    Indices of a frame differ, so nothing is added atomically.
    """
    row, block = _row(table, tensors)
    i = block * B + tl.arange(0, B)
    ok = i < whole(row, COUNT)
    index = tl.load(tl.load(row + INDICES).to(tl.pointer_type(tl.int32)) + i, mask=ok, other=0)
    value = tl.load(floats(row, VALUES) + i, mask=ok, other=0.0)
    _add(row, index, ok, value, HELD)


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
    """Payload, number of elements, and the elements of a program."""
    return tl.load(row + VALUES), whole(row, COUNT), block * B + tl.arange(0, B)


@triton.jit
def _add(row, i, ok, value, START: tl.constexpr):
    to = floats(row, ACC) + i
    total = real(row, WEIGHT) * value
    if START == HELD:
        total = tl.load(to, mask=ok, other=0.0) + total
    elif START == ZERO:
        total = 0.0 + total
    tl.store(to, total, mask=ok)


@triton.jit
def _byte(payload, at, ok):
    """The byte at a place, as int32."""
    return tl.load(payload.to(tl.pointer_type(tl.uint8)) + at, mask=ok, other=0).to(tl.int32)


@triton.jit
def _float(payload, at, ok):
    """The float32 that begins at a byte, a multiple of 4."""
    return tl.load(payload.to(tl.pointer_type(tl.float32)) + at // 4, mask=ok, other=0.0)


@triton.jit
def add_floats_kernel(table, tensors, TYPE: tl.constexpr, START: tl.constexpr, B: tl.constexpr):
    """Adds a payload of identity, fp16 or bf16. 12 bytes per element of identity, else 10."""
    row, block = _row(table, tensors)
    _, n, i = _elements(row, block, B)
    ok = i < n
    _add(row, i, ok, values_of(row, i, ok, TYPE), START)


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
def add_bits_kernel(table, tensors, ONE_BIT: tl.constexpr, START: tl.constexpr, B: tl.constexpr):
    """Adds a payload of sign, or of onebit. 8.1 bytes per element."""
    row, block = _row(table, tensors)
    payload, n, i = _elements(row, block, B)
    ok = i < n
    HEAD: tl.constexpr = 8 if ONE_BIT else 4
    negative = (_byte(payload, HEAD + i // 8, ok) >> (i % 8)) & 1
    scales = payload.to(tl.pointer_type(tl.float32))
    if ONE_BIT:
        _add(row, i, ok, tl.where(negative != 0, tl.load(scales), tl.load(scales + 1)), START)
    else:
        _add(row, i, ok, tl.where(negative != 0, -tl.load(scales), tl.load(scales)), START)


@triton.jit
def add_ternary_kernel(table, tensors, START: tl.constexpr, B: tl.constexpr):
    """Adds a payload of terngrad. 8.2 bytes per element.

    Byte j of a block of 1280 elements has the elements j, j + 256, ...; the last block is shorter.
    """
    row, block = _row(table, tensors)
    payload, n, i = _elements(row, block, B)
    ok = i < n
    begin = i // 1280 * 1280
    if (block + 1) * B <= n // 1280 * 1280:  # no division by a size that is not known here
        _add(row, i, ok, _ternary(payload, i, begin, 256, ok), START)
    else:
        size = tl.where(ok, tl.minimum(256, (n - begin + 4) // 5), 1)
        _add(row, i, ok, _ternary(payload, i, begin, size, ok), START)


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
    table, tensors, EACH: tl.constexpr, BUCKET: tl.constexpr, START: tl.constexpr, B: tl.constexpr
):
    """Adds a payload of int8 (EACH level a byte) or int4 (EACH two). 9 or 8.5 bytes per element."""
    row, block = _row(table, tensors)
    payload, n, i = _elements(row, block, B)
    ok = i < n
    STRIDE: tl.constexpr = 4 + BUCKET // EACH
    bucket = i // BUCKET * STRIDE
    byte = _byte(payload, bucket + 4 + i % BUCKET // EACH, ok)
    if EACH == 1:
        level = (byte ^ 0x80) - 0x80
    else:
        level = (((byte >> (i % 2 * 4)) & 0xF) ^ 0x8) - 0x8
    _add(row, i, ok, _float(payload, bucket, ok) * level.to(tl.float32), START)


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
    LEVELS: tl.constexpr,
    BITS: tl.constexpr,
    BUCKET: tl.constexpr,
    START: tl.constexpr,
    B: tl.constexpr,
):
    """Adds a payload of qsgd. 9 bytes per element with 8 bits."""
    row, block = _row(table, tensors)
    payload, n, i = _elements(row, block, B)
    ok = i < n
    symbol = _symbol(payload, i, (n + BUCKET - 1) // BUCKET, ok, BITS)
    norm = _float(payload, 4 * (i // BUCKET), ok)
    unit = tl.div_rn(norm, tl.full((B,), LEVELS, tl.float32))
    _add(row, i, ok, unit * ((symbol >> 1) ^ -(symbol & 1)).to(tl.float32), START)


@triton.jit
def add_uniform_kernel(
    table, tensors, BITS: tl.constexpr, BUCKET: tl.constexpr, START: tl.constexpr, B: tl.constexpr
):
    """Adds a payload of uniform. 8.5 bytes per element with 4 bits."""
    row, block = _row(table, tensors)
    payload, n, i = _elements(row, block, B)
    ok = i < n
    symbol = _symbol(payload, i, (n + BUCKET - 1) // BUCKET, ok, BITS)
    TOP: tl.constexpr = (1 << BITS) - 1
    _add(
        row,
        i,
        ok,
        (2 * symbol - TOP).to(tl.float32) * _float(payload, 4 * (i // BUCKET), ok),
        START,
    )


@triton.jit
def add_rotated_kernel(
    table, tensors, BITS: tl.constexpr, REST: tl.constexpr, START: tl.constexpr, B: tl.constexpr
):
    """Adds a block of a payload of rotate|uniform; or a tensor's rest, in an earlier launch, which leaves
    the elements that it shares with the last block for it. 8.5 bytes per element with 4 bits.

    B is kernels/rotate.py's BLOCK.
    """
    row, number = _row(table, tensors)
    payload = tl.load(row + VALUES)
    n, log2 = whole(row, COUNT), whole(row, LOG2)
    block, i, inside, covered = block_or_rest(number, n, log2, REST)
    scales = (n >> log2) + tl.where(covered < n, 1, 0)
    TOP: tl.constexpr = (1 << BITS) - 1
    symbol = _symbol(payload, i, scales, inside, BITS)
    x = (2 * symbol - TOP).to(tl.float32) * _scale(payload, block)
    begin = n - (1 << log2)  # of the elements that a rest shares with the last block
    shared = floats(row, SHARED) + (i - begin)
    if not REST:
        tail = inside & (i >= tl.where(covered < n, begin, n))
        x = tl.where(tail, tl.load(shared, mask=tail, other=0.0), x)
    x = hadamard(tl.where(inside, x, 0.0), log2)
    x = flip(tl.load(row + STREAM), real(row, FACTOR), block, x)
    if REST:
        tl.store(shared, x, mask=inside & (i < covered))
        neighbour = _scale(payload, block - 1)
        x = tl.where(neighbour == neighbour, x, float("nan"))
        inside = inside & (i >= covered)
    _add(row, i, inside, x, START)


@triton.jit
def _scale(payload, group):
    """A group's scale; NaN for one that no encoder makes, as in the core."""
    scale = tl.load(payload.to(tl.pointer_type(tl.float32)) + group)
    usable = tl.abs(scale) <= 1.2676506002282294e30  # 2^100
    return tl.where(usable, scale, float("nan"))
