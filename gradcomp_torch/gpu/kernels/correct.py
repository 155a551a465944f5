"""Error feedback and momentum correction of elements: as csrc/codec/feedback.cpp.

`MODE` of a launch: `PLAIN` reads the gradient; `FEEDBACK` is ``beta * residual + gamma * grad``;
`CORRECTION` and `NESTEROV` add the momentum to the residual (Lin et al., "Deep Gradient Compression",
ICLR 2018, section 3.2). `GRAD_TYPE` is that of the gradient, one of value_types.py's first three; with
`PLAIN` it is float32.

A NaN that arithmetic makes has the bits that the hardware gives it: NVIDIA's are 0x7FFFFFFF, whatever
the payload of an operand. So NaN sent from there and from x86 may differ; none of them stays in memory.
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import (
    INF,
    bits_of,
    float_from_bfloat,
    float_from_half,
    magnitude,
    zero_nonfinite,
)
from gradcomp_torch.gpu.kernels.table import (
    BETA,
    FIRST_TILE,
    GAMMA,
    GRAD,
    MOMENTUM,
    NUMEL,
    RESIDUAL,
    elements,
    real,
    row_of,
    span_of,
    whole,
)
from gradcomp_torch.gpu.kernels.value_types import FP16, FP32

PLAIN = tl.constexpr(0)
FEEDBACK = tl.constexpr(1)
CORRECTION = tl.constexpr(2)
NESTEROV = tl.constexpr(3)


@triton.jit
def corrected(
    row,
    i,
    ok,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    STORE: tl.constexpr,
    ZERO: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Corrected elements `i`, which exist where `ok`.

    The caller stores the residual. With STORE the momentum is stored here, with ZERO without its NaN
    and Inf.
    """
    grad = _gradient(row, i, ok, GRAD_TYPE, ALIGNED)
    if MODE == PLAIN:
        x = grad
    else:
        residual = tl.load(elements(row, RESIDUAL, i, ALIGNED), mask=ok, other=0.0)
        scaled = real(row, GAMMA) * grad
        if MODE == FEEDBACK:
            x = real(row, BETA) * residual + scaled
        else:
            to = elements(row, MOMENTUM, i, ALIGNED)
            momentum = tl.load(to, mask=ok, other=0.0)
            if MODE == NESTEROV:
                momentum = real(row, BETA) * (momentum + scaled)
                x = residual + (momentum + scaled)
            else:
                momentum = real(row, BETA) * momentum + scaled
                x = residual + momentum
            if STORE:
                if ZERO:
                    momentum = zero_nonfinite(momentum)
                tl.store(to, momentum, mask=ok)
    return x


@triton.jit
def _gradient(row, i, ok, GRAD_TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Elements of the gradient as float32; those of 16 bits as torch converts them on the host."""
    if GRAD_TYPE == FP32:
        grad = tl.load(elements(row, GRAD, i, ALIGNED), mask=ok, other=0.0)
    else:
        to = tl.load(row + GRAD).to(tl.pointer_type(tl.uint16)) + i
        if ALIGNED:
            to = tl.multiple_of(to, 8)  # bytes of 4 elements
        half = tl.load(to, mask=ok, other=0)
        grad = float_from_half(half) if GRAD_TYPE == FP16 else float_from_bfloat(half)
    return grad


@triton.jit
def zero_kernel(
    table,
    tensors,
    flags,
    FLAGS: tl.constexpr,
    FLAG: tl.constexpr,
    MODE: tl.constexpr,
    ALIGNED: tl.constexpr,
    SPAN: tl.constexpr,
    TILE: tl.constexpr,
):
    """Resets NaN and Inf to 0, in residual and momentum, of tensors with a set flag.

    0 bytes per element where all was finite, else 8 of each array.
    """
    tensor, row, _, begin, end = span_of(table, tensors, SPAN, TILE)
    if tl.load(flags + tensor * FLAGS + FLAG) == 0:
        return
    for tile in range(begin, end):
        zero_tile(row, tile, MODE, ALIGNED, TILE)


@triton.jit
def zero_tile(row, tile, MODE: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr):
    """Resets NaN and Inf of a tensor's tile to 0, in residual and momentum."""
    i = tile * TILE + tl.arange(0, TILE)
    ok = i < whole(row, NUMEL)
    residual = elements(row, RESIDUAL, i, ALIGNED)
    x = tl.load(residual, mask=ok, other=0.0)
    tl.store(residual, tl.zeros_like(x), mask=ok & ((bits_of(x) & INF) == INF))
    if MODE >= CORRECTION:
        momentum = elements(row, MOMENTUM, i, ALIGNED)
        m = tl.load(momentum, mask=ok, other=0.0)
        tl.store(momentum, tl.zeros_like(m), mask=ok & ((bits_of(m) & INF) == INF))


@triton.jit
def correct_kernel(
    table,
    tensors,
    flags,
    MODE: tl.constexpr,
    GRAD_TYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Corrects a tile in the residual, and sets the tensor's flag if an element is not finite.

    12 bytes per element with feedback.
    """
    tile = tl.program_id(0)
    tensor = tl.load(tensors + tile)
    row = row_of(table, tensor)
    i = (tile - whole(row, FIRST_TILE)) * TILE + tl.arange(0, TILE)
    ok = i < whole(row, NUMEL)
    x = corrected(row, i, ok, MODE, GRAD_TYPE, True, False, ALIGNED)
    tl.store(elements(row, RESIDUAL, i, ALIGNED), x, mask=ok)
    if tl.max(tl.where(ok, magnitude(x), 0), axis=0) >= INF:
        tl.atomic_or(flags + tensor, 1, sem="relaxed")
