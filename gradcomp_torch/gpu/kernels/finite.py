"""Gradients with an element that is not finite become all NaN, for steps of mixed precision that are skipped."""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import INF, NAN, float_of, magnitude
from gradcomp_torch.gpu.kernels.table import floats, whole

FIELDS = tl.constexpr(3)
GRAD = tl.constexpr(0)  # pointer to float32
NUMEL = tl.constexpr(1)
FIRST = tl.constexpr(2)  # number of the gradient's first block in the launch


@triton.jit
def _block(table, tensors, B: tl.constexpr):
    """Of a program: the gradient, pointers to its elements there, and which of them exist."""
    block = tl.program_id(0)
    tensor = tl.load(tensors + block)
    row = table + tensor.to(tl.int64) * FIELDS
    i = (block - whole(row, FIRST)) * B + tl.arange(0, B)
    return tensor, floats(row, GRAD) + i, i < whole(row, NUMEL)


@triton.jit
def find_nonfinite_kernel(table, tensors, found, B: tl.constexpr):
    """``found`` of a gradient becomes 1 where an element is not finite. 4 bytes per element."""
    tensor, grad, ok = _block(table, tensors, B)
    x = tl.load(grad, mask=ok, other=0.0)
    largest = tl.max(magnitude(x), axis=0)
    if largest >= INF:
        tl.atomic_or(found + tensor, 1, sem="relaxed")


@triton.jit
def poison_kernel(table, tensors, found, B: tl.constexpr):
    """Gradients that were found become NaN, of the bits of numpy's; others are not touched."""
    tensor, grad, ok = _block(table, tensors, B)
    nan = float_of(tl.full((B,), NAN, tl.uint32))
    tl.store(grad, nan, mask=ok & (tl.load(found + tensor + tl.zeros((B,), tl.int32)) != 0))
