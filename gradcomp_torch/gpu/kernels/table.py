"""The table of a bucket, as kernels see it: a row of int64 fields for each tensor.

Floats are in their field as bits. `gradcomp_torch.gpu.bucket` fills the rows.
"""

import triton
import triton.language as tl

FIELDS = tl.constexpr(23)

# Pointers to float32.
GRAD = tl.constexpr(0)  # or to 16 bits: see correct.py
RESIDUAL = tl.constexpr(1)  # without error feedback the gradient, which is then only read
MOMENTUM = tl.constexpr(2)

NUMEL = tl.constexpr(3)
FIRST_TILE = tl.constexpr(4)  # number of the tensor's first tile among those of the bucket
BETA = tl.constexpr(5)  # with momentum correction its factor
GAMMA = tl.constexpr(6)  # with momentum correction the scale of the gradient
STREAM = tl.constexpr(7)
OUT = tl.constexpr(8)  # pointer to the payload; of sparse codecs, the offset of the kept elements
KEPT = tl.constexpr(9)  # number of elements to keep
FIRST_BLOCK = tl.constexpr(10)  # number of the first block of kept elements in the bucket
RUNS = tl.constexpr(11)  # of consecutive elements, in the sample for a guess
STRIDE = tl.constexpr(12)  # elements between the beginnings of runs
RANK = tl.constexpr(13)  # of the guess among the sample
SCALAR = tl.constexpr(14)  # parameter of the codec as float64
LOG2 = tl.constexpr(15)  # of the elements of a block of a rotation
FIRST_GROUP = tl.constexpr(16)  # number of the first group of rotated elements in the bucket
FACTOR = tl.constexpr(17)  # of a rotation
ROTATED = tl.constexpr(18)  # pointer to float32
FIRST_SPAN = tl.constexpr(19)  # number of the first span of tiles in the bucket

# Of packed indices; see packed.py.
PACKED = tl.constexpr(20)  # offset of the words
LOW = tl.constexpr(21)  # lower bits of an index
UPPER = tl.constexpr(22)  # words of upper bits


@triton.jit
def row_of(table, tensor):
    """Pointer to a tensor's row."""
    return table + tensor.to(tl.int64) * FIELDS


@triton.jit
def whole(row, FIELD: tl.constexpr):
    """A field as int32."""
    return tl.load(row + FIELD).to(tl.int32)


@triton.jit
def real(row, FIELD: tl.constexpr):
    """A field as float32."""
    return tl.load(row + FIELD).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def floats(row, FIELD: tl.constexpr):
    """A field as pointer to float32."""
    return tl.load(row + FIELD).to(tl.pointer_type(tl.float32))


@triton.jit
def elements(row, FIELD: tl.constexpr, i, ALIGNED: tl.constexpr):
    """Pointers to elements `i`, a run from a multiple of 4 on; aligned ones are read as vectors."""
    to = floats(row, FIELD) + i
    if ALIGNED:
        to = tl.multiple_of(to, 16)  # bytes
    return to


@triton.jit
def double(row, FIELD: tl.constexpr):
    """A field as float64."""
    return tl.load(row + FIELD).to(tl.float64, bitcast=True)


@triton.jit
def payload(row, OFFSET: tl.constexpr, TYPE: tl.constexpr):
    """Pointer into the payload, which begins at a multiple of 16 bytes."""
    return (tl.load(row + OUT) + OFFSET).to(tl.pointer_type(TYPE))


@triton.jit
def span_of(table, tensors, SPAN: tl.constexpr, TILE: tl.constexpr):
    """Of a program that has a span of tiles: the tensor, its row, its first tile among those of the bucket,
    the span's first tile among those of the tensor, and the one after its last."""
    span = tl.program_id(0)
    tensor = tl.load(tensors + span)
    row = row_of(table, tensor)
    tiles = (whole(row, NUMEL) + TILE - 1) // TILE
    begin = (span - whole(row, FIRST_SPAN)) * SPAN
    return tensor, row, whole(row, FIRST_TILE), begin, tl.minimum(begin + SPAN, tiles)
