"""Float32 numbers as bits, and the 16-bit formats: as csrc/kernels/half.hpp."""

import triton
import triton.language as tl

MAGNITUDE = tl.constexpr(0x7FFFFFFF)
INF = tl.constexpr(0x7F800000)
NAN = tl.constexpr(0x7FC00000)


@triton.jit
def bits_of(x):
    """Bits of float32 as uint32."""
    return x.to(tl.uint32, bitcast=True)


@triton.jit
def float_of(bits):
    """Inverse of `bits_of`; also takes int32."""
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def magnitude(x):
    """Bits of |x| as int32, which order as the magnitudes do; NaN is above Inf."""
    return (bits_of(x) & MAGNITUDE).to(tl.int32)


@triton.jit
def zero_nonfinite(x):
    """0 instead of NaN and Inf."""
    return tl.where((bits_of(x) & INF) == INF, 0.0, x)


@triton.jit
def half_bits(x, SATURATE: tl.constexpr):
    """Rounds to binary16 as uint16, keeping the upper payload bits of a NaN."""
    bits = bits_of(x)
    sign = (bits >> 16) & 0x8000
    m = bits & MAGNITUDE
    nan = 0x7E00 | ((m >> 13) & 0x3FF)
    # Below 2^-14 the result is a multiple of 2^-24, which is the spacing of floats near 0.5.
    small = bits_of(float_of(tl.minimum(m, 0x38800000)) + 0.5) - 0x3F000000
    normal = (m + 0xFFF + ((m >> 13) & 1) - 0x38000000) >> 13
    beyond = tl.where(SATURATE & (m < INF), 0x7BFF, 0x7C00).to(tl.uint32)
    within = tl.where(m < 0x38800000, small, normal)
    half = tl.where(m > INF, nan, tl.where(m >= 0x477FF000, beyond, within))
    return (sign | half).to(tl.uint16)


@triton.jit
def float_from_half(half):
    """Exact value of binary16; a signalling NaN becomes quiet."""
    h = half.to(tl.uint32)
    sign = (h & 0x8000) << 16
    exponent = (h >> 10) & 0x1F
    mantissa = h & 0x3FF
    small = bits_of(mantissa.to(tl.int32).to(tl.float32) * 5.9604644775390625e-08) | sign
    top = sign | INF | tl.where(mantissa != 0, 0x400000 | (mantissa << 13), 0)
    normal = sign | ((exponent + 112) << 23) | (mantissa << 13)
    return float_of(tl.where(exponent == 0, small, tl.where(exponent == 31, top, normal)))


@triton.jit
def bfloat_bits(x):
    """Rounds to bfloat16 as uint16, keeping the upper payload bits of a NaN."""
    bits = bits_of(x)
    nan = (bits >> 16) | 0x40
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where((bits & MAGNITUDE) > INF, nan, rounded).to(tl.uint16)


@triton.jit
def float_from_bfloat(bfloat):
    """Exact value of bfloat16."""
    return float_of(bfloat.to(tl.uint32) << 16)
