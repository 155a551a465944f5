"""Decoded frames are added to averages: ``acc += weight * value``, each step rounded.

A launch for each rank, in rank order. The table has a row for each tensor of it.
"""

import triton
import triton.language as tl

from torch_compressors.gpu.kernels.bits import float_from_bfloat, float_from_half

FIELDS = tl.constexpr(6)
ACC = tl.constexpr(0)  # pointer to float32
VALUES = tl.constexpr(1)  # pointer to kept values, or to a payload
INDICES = tl.constexpr(2)  # pointer to int32
COUNT = tl.constexpr(3)  # elements to add
FIRST = tl.constexpr(4)  # number of the tensor's first block in the launch
WEIGHT = tl.constexpr(5)  # bits of float32


@triton.jit
def _row(table, tensors):
    block = tl.program_id(0)
    row = table + tl.load(tensors + block).to(tl.int64) * FIELDS
    return row, block - tl.load(row + FIRST).to(tl.int32)


@triton.jit
def add_kept_kernel(table, tensors, B: tl.constexpr):
    """Adds kept elements. 16 bytes each, of which 8 at scattered addresses.

    Indices of a frame differ, so nothing is added atomically.
    """
    row, block = _row(table, tensors)
    i = block * B + tl.arange(0, B)
    ok = i < tl.load(row + COUNT).to(tl.int32)
    index = tl.load(tl.load(row + INDICES).to(tl.pointer_type(tl.int32)) + i, mask=ok, other=0)
    value = tl.load(tl.load(row + VALUES).to(tl.pointer_type(tl.float32)) + i, mask=ok, other=0.0)
    weight = tl.load(row + WEIGHT).to(tl.int32).to(tl.float32, bitcast=True)
    to = tl.load(row + ACC).to(tl.pointer_type(tl.float32)) + index
    tl.store(to, tl.load(to, mask=ok, other=0.0) + weight * value, mask=ok)


@triton.jit
def add_half_kernel(table, tensors, BF16: tl.constexpr, B: tl.constexpr):
    """Adds a payload of fp16 or bf16. 10 bytes per element."""
    row, block = _row(table, tensors)
    i = block * B + tl.arange(0, B)
    ok = i < tl.load(row + COUNT).to(tl.int32)
    half = tl.load(tl.load(row + VALUES).to(tl.pointer_type(tl.uint16)) + i, mask=ok, other=0)
    if BF16:
        value = float_from_bfloat(half)
    else:
        value = float_from_half(half)
    weight = tl.load(row + WEIGHT).to(tl.int32).to(tl.float32, bitcast=True)
    to = tl.load(row + ACC).to(tl.pointer_type(tl.float32)) + i
    tl.store(to, tl.load(to, mask=ok, other=0.0) + weight * value, mask=ok)
