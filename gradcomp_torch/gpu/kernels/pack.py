"""Kept elements after the choice: the scales of their wire type, and what they leave behind.

Kept values travel to the host as float32, where the core codes them (csrc/coding/values.cpp). Here they
are decoded as receivers will, to be subtracted from the residual. `TYPE` of a launch is one of value_types.py.
"""

import triton
import triton.language as tl

from gradcomp_torch.gpu.kernels.bits import (
    INF,
    NAN,
    bfloat_bits,
    bits_of,
    float_of,
    half_bits,
    magnitude,
    zero_nonfinite,
)
from gradcomp_torch.gpu.kernels.correct import CORRECTION
from gradcomp_torch.gpu.kernels.select import COUNT, SCALES, STATE
from gradcomp_torch.gpu.kernels.sums import fold, sequential
from gradcomp_torch.gpu.kernels.table import (
    FIRST_BLOCK,
    MOMENTUM,
    OUT,
    RESIDUAL,
    floats,
    row_of,
    whole,
)
from gradcomp_torch.gpu.kernels.value_types import INT8, MEANS, SIGN


@triton.jit
def halves_kernel(values, out, n, BF16: tl.constexpr, B: tl.constexpr):
    """Rounds all kept values to 16 bits for other devices. 6 bytes each."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(
        0, B
    )  # a bucket may have more elements than a tensor
    x = tl.load(values + i, mask=i < n, other=0.0)
    half = bfloat_bits(x) if BF16 else half_bits(x, True)
    tl.store(out + i, half.to(tl.int16, bitcast=True), mask=i < n)


@triton.jit
def magnitudes_kernel(table, state, values):
    """The scale of values=sign: the mean magnitude. A program for each tensor, in the core's order."""
    tensor = tl.program_id(0)
    row = row_of(table, tensor)
    k = tl.load(state + tensor * STATE + COUNT)
    x = values + tl.load(row + OUT)
    lane = tl.arange(0, 16)
    total = tl.zeros((16,), tl.float64)
    for begin in range(0, k, 16):
        i = begin + lane
        total += tl.abs(tl.load(x + i, mask=i < k, other=0.0).to(tl.float64))
    mean = (fold(total) / k.to(tl.float64)).to(tl.float32)
    bits = tl.where(magnitude(mean) < INF, bits_of(mean).to(tl.int32, bitcast=True), NAN)
    tl.store(state + tensor * STATE + SCALES, bits)


@triton.jit
def means_kernel(table, state, values):
    """The scales of values=means: of values below 0, then of all others."""
    tensor = tl.program_id(0)
    row = row_of(table, tensor)
    k = tl.load(state + tensor * STATE + COUNT)
    x = values + tl.load(row + OUT)
    lane = tl.arange(0, 16)
    below = tl.zeros((16,), tl.float64)
    others = tl.zeros((16,), tl.float64)
    negatives = tl.zeros((16,), tl.int32)
    for begin in range(0, k, 16):
        i = begin + lane
        wide = tl.load(x + i, mask=i < k, other=0.0).to(tl.float64)
        # A NaN fails both comparisons and goes to both sums.
        below += tl.where(wide > 0, 0.0, wide)
        others += tl.where(wide < 0, 0.0, wide)
        negatives += (wide < 0).to(tl.int32)
    count = tl.sum(negatives, axis=0)
    sum_below = fold(below)
    sum_others = fold(others)
    finite = tl.abs(sum_below) + tl.abs(sum_others) < float("inf")
    to = state + tensor * STATE + SCALES
    tl.store(to, _mean(sum_below, count, finite))
    tl.store(to + 1, _mean(sum_others, k - count, finite))


@triton.jit
def _mean(total, count, finite):
    """Bits of a mean rounded to float32: 0 of nothing, and NaN where a value is not finite."""
    mean = (total / tl.maximum(count, 1).to(tl.float64)).to(tl.float32)
    bits = tl.where(count == 0, 0, bits_of(mean).to(tl.int32, bitcast=True))
    return tl.where(finite, bits, NAN)


@triton.jit
def bins_kernel(table, state, values, bins):
    """The scales of values=2bit, and each value's bin as int8.

    A program for each tensor adds value after value, as the core does.
    """
    tensor = tl.program_id(0)
    row = row_of(table, tensor)
    k = tl.load(state + tensor * STATE + COUNT)
    begin = tl.load(row + OUT)
    x = values + begin
    mean = sequential(x, k, 0.0, False) / tl.maximum(k, 1).to(tl.float64)
    squares = sequential(x, k, mean, True)
    deviation = tl.where(k < 2, 0.0, tl.sqrt(squares / tl.maximum(k - 1, 1).to(tl.float64)))
    finite = deviation < float("inf")
    width = tl.where(finite & (deviation > 0), 6.0 * deviation / 4.0, 1.0)
    which = tl.arange(0, 4)
    total = tl.zeros((4,), tl.float64)
    count = tl.zeros((4,), tl.int32)
    for i in range(k):
        wide = tl.load(x + i).to(tl.float64)
        place = (wide - mean) / width + 2.0
        place = tl.where(place > 3.0, 3.0, tl.where(place > 0.0, place, 0.0))
        # Adding 2^52 rounds to the nearest whole number, ties to even.
        bin = ((place + 4503599627370496.0) - 4503599627370496.0).to(tl.int32)
        in_bin = which == bin
        total = tl.where(in_bin, total + wide, total)
        count += in_bin.to(tl.int32)
        tl.store(bins + begin + i, bin.to(tl.int8))
    of_bin = (total / tl.maximum(count, 1).to(tl.float64)).to(tl.float32)
    bits = tl.where(count == 0, 0, bits_of(of_bin).to(tl.int32, bitcast=True))
    tl.store(state + tensor * STATE + SCALES + which, tl.where(finite, bits, NAN))


@triton.jit
def subtract_kernel(
    table,
    tensors,
    state,
    indices,
    values,
    bins,
    TYPE: tl.constexpr,
    MODE: tl.constexpr,
    MASKING: tl.constexpr,
    B: tl.constexpr,
):
    """``residual[index] -= decoded value``; with MASKING ``momentum[index] = 0``. O(k) bytes.

    For types with scales: others are subtracted by `select.compact_kernel`, which has reset NaN and Inf in the
    residual. Those that an element leaves become 0 here: where one was kept, every decoded value is NaN.
    """
    block = tl.program_id(0)
    tensor = tl.load(tensors + block)
    row = row_of(table, tensor)
    i = (block - whole(row, FIRST_BLOCK)) * B + tl.arange(0, B)
    ok = i < tl.load(state + tensor * STATE + COUNT)
    at = tl.load(row + OUT) + i
    x = tl.load(values + at, mask=ok, other=0.0)
    scales = state + tensor * STATE + SCALES
    if TYPE == INT8:
        decoded = _int8(x, tl.load(scales))
    elif TYPE == SIGN:
        decoded = float_of(tl.load(scales).to(tl.uint32) ^ (bits_of(x) & 0x80000000))
    elif TYPE == MEANS:
        decoded = float_of(tl.where(x < 0, tl.load(scales), tl.load(scales + 1)))
    else:
        bin = tl.load(bins + at, mask=ok, other=0).to(tl.int32)
        decoded = float_of(tl.load(scales + bin))
    index = tl.load(indices + at, mask=ok, other=0)
    to = floats(row, RESIDUAL) + index
    left = zero_nonfinite(tl.load(to, mask=ok, other=0.0) - decoded)
    tl.store(to, left, mask=ok)
    if MASKING and MODE >= CORRECTION:
        tl.store(floats(row, MOMENTUM) + index, tl.zeros_like(x), mask=ok)


@triton.jit
def _int8(x, largest):
    """Decoded values=int8: multiples of the largest magnitude / 127."""
    step = tl.minimum(
        tl.div_rn(float_of(tl.where(largest < INF, largest, 0)), 127.0), 2.6793883890187504e36
    )
    usable = step >= 1.1754943508222875e-38  # a smaller step has no finite inverse
    inverse = tl.where(usable, tl.div_rn(1.0, tl.where(usable, step, 1.0)), 0.0)
    scaled = tl.minimum(tl.maximum(x * inverse, -127.0), 127.0)
    # Adding 1.5 * 2^23 leaves the nearest whole number in the lower bits.
    level = bits_of(scaled + 12582912.0).to(tl.int8)
    decoded = step * level.to(tl.float32)
    return tl.where(largest < INF, decoded, float_of(tl.full(x.shape, 0x7FC00000, tl.uint32)))
