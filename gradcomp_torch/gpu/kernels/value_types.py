"""Wire types of kept values, and rounding to those that need no scale.

`TYPE` of a launch is the number of the value type in a payload, as docs/wire-format.md gives it.
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import (
    bfloat_bits,
    float_from_bfloat,
    float_from_half,
    half_bits,
)

FP32 = tl.constexpr(0)
FP16 = tl.constexpr(1)
BF16 = tl.constexpr(2)
INT8 = tl.constexpr(3)
SIGN = tl.constexpr(4)
MEANS = tl.constexpr(5)
BINS = tl.constexpr(6)


@triton.jit
def rounded(x, TYPE: tl.constexpr):
    """The value that arrives with one of the first three types."""
    if TYPE == FP16:
        x = float_from_half(half_bits(x, True))
    elif TYPE == BF16:
        x = float_from_bfloat(bfloat_bits(x))
    return x
