"""Codecs of few bits: their definitions, unbiasedness, and the reference implementations' data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoder import stream_key

from gradcomp import Loopback, Pipeline, SpecError, WireError, get_codec
from support.codecs import check_refused, roundtrip
from support.gradients import normal
from support.pipelines import config_of, residual_of, send
from support.reference import reference
from support.streams import rounding_words

FLOAT32_MAX = np.finfo(np.float32).max
RANDOM = [
    "terngrad(clip=0)",
    "natural",
    "int8(rounding=stochastic)",
    "int4(rounding=stochastic)",
    "fp8(rounding=stochastic)",
    "fp8(format=e5m2,rounding=stochastic)",
]


def messages(case: str, *kinds: str) -> list[tuple[np.ndarray, ...]]:
    """The named arrays of every tensor, step and rank of a reference case, flat."""
    _, arrays = reference(case)
    names = [key.split(".", 1)[1] for key in arrays if key.startswith("grad.")]
    found = []
    for name in names:
        of_tensor = [arrays[f"{kind}.{name}"] for kind in kinds]
        for at in np.ndindex(of_tensor[0].shape[:2]):
            found.append(tuple(array[at].ravel() for array in of_tensor))
    assert found
    return found


def words_of(n: int, seed: int) -> np.ndarray:
    """The rounding words of n elements at step 0 of tensor 0."""
    return rounding_words(stream_key(seed, 0, 0), n).astype(np.uint32)


# sign and onebit


@pytest.mark.parametrize("n", [1, 7, 8, 9, 1000, 70_001])
def test_sign_is_the_mean_magnitude_with_the_sign(n: int) -> None:
    x = normal(n)
    payload = get_codec("sign").encode_payload(x)
    scale = np.float32(np.abs(x, dtype=np.float64).mean())
    assert payload[:4].view(np.float32)[0] == pytest.approx(scale, rel=1e-7)
    bits = np.unpackbits(payload[4:], bitorder="little")
    assert bits[:n].tolist() == (x < 0).tolist()
    assert not bits[n:].any()


def test_sign_is_the_contraction_of_its_paper() -> None:
    x = normal(5000).astype(np.float64) ** 3
    x32 = x.astype(np.float32)
    error = np.sum((roundtrip("sign", x32).astype(np.float64) - x32) ** 2)
    square = np.sum(x32.astype(np.float64) ** 2)
    density = np.abs(x32, dtype=np.float64).sum() ** 2 / (x.size * square)
    assert error == pytest.approx((1 - density) * square, rel=1e-5)


@pytest.mark.parametrize("codec", ["sign", "onebit"])
def test_zero_counts_as_not_negative(codec: str) -> None:
    x = np.array([-0.0, 0.0, -1.0, 3.0], np.float32)
    assert (np.signbit(roundtrip(codec, x)) == [False, False, True, False]).all()


@pytest.mark.parametrize("n", [1, 9, 1000, 70_001])
def test_onebit_has_the_two_means(n: int) -> None:
    x = normal(n) + np.float32(0.3)
    negative = x < 0
    expected = np.empty(n)
    for side in (negative, ~negative):
        if side.any():
            expected[side] = x[side].mean(dtype=np.float64)
    np.testing.assert_allclose(roundtrip("onebit", x), expected, rtol=1e-7)


def test_onebit_keeps_the_sum() -> None:
    x = normal(10_000) + np.float32(0.3)
    assert roundtrip("onebit", x).sum(dtype=np.float64) == pytest.approx(
        x.sum(dtype=np.float64), rel=1e-6
    )


def test_small_magnitudes_survive_beside_large_ones_of_the_other_sign() -> None:
    x = np.array([-1e30, 1e-30, 3e-30], np.float32)
    np.testing.assert_allclose(roundtrip("onebit", x), [-1e30, 2e-30, 2e-30], rtol=1e-6)


def test_sign_bits_are_those_of_grace_signsgd() -> None:
    for grad, decoded in messages("grace-signsgd-01", "grad", "decoded"):
        assert (np.sign(roundtrip("sign", grad)) == decoded).all()
        np.testing.assert_array_equal(roundtrip("sign(scale=one)", grad), decoded)


def test_signs_without_a_scale_keep_no_residual_and_show_values_that_are_not_finite() -> None:
    assert get_codec("sign(scale=mean)").spec == "sign"
    assert roundtrip(
        "sign(scale=one)", np.array([0.1, -0.0, -3e38, 1e-45], np.float32)
    ).tolist() == [*(1.0, 1.0, -1.0, 1.0)]
    assert np.isnan(roundtrip("sign(scale=one)", np.array([1, np.inf], np.float32))).all()
    with pytest.raises(
        SpecError, match="error feedback cannot follow gradients beyond 1 with scale=one"
    ):
        Loopback("residual|sign(scale=one)", 1)
    Loopback("signum|sign(scale=one)", 1)


def test_scaled_sign_with_memory_is_that_of_grace_efsignsgd() -> None:
    for corrected, decoded, residual in messages(
        "grace-efsignsgd-01", "compensated", "decoded", "residual"
    ):
        sent = roundtrip("sign", corrected)
        np.testing.assert_allclose(sent, decoded, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(corrected - sent, residual, rtol=1e-5, atol=1e-6)


def test_signs_without_a_scale_are_those_of_byteps_onebit_without_scaling() -> None:
    _, arrays = reference("byteps-onebit-02")
    grads, of_theirs = (arrays[kind].reshape(-1, 64) for kind in ("grad", "decoded"))
    for grad, decoded in zip(grads, of_theirs, strict=True):
        np.testing.assert_array_equal(roundtrip("sign(scale=one)", grad), decoded)


def test_scaled_sign_is_that_of_byteps_onebit() -> None:
    _, arrays = reference("byteps-onebit-01")
    for grad, packed, decoded in zip(
        arrays["grad"].reshape(-1, 100),
        arrays["packed"].reshape(-1, 20),
        arrays["decoded"].reshape(-1, 100),
        strict=True,
    ):
        payload = get_codec("sign").encode_payload(grad)
        np.testing.assert_allclose(roundtrip("sign", grad), decoded, rtol=1e-6, atol=1e-7)
        # Theirs: words of 32 bits, the first element in the most significant one, the scale last.
        theirs = np.unpackbits(packed[:16].view("<u4").byteswap().view(np.uint8))
        ours = np.unpackbits(payload[4:], bitorder="little")
        assert theirs[:100].tolist() == ours[:100].tolist()
        np.testing.assert_allclose(
            payload[:4].view(np.float32), packed[16:].view(np.float32), rtol=1e-6
        )


def test_onebit_with_residual_is_that_of_grace_step_by_step() -> None:
    _, arrays = reference("grace-onebit-02")
    steps, ranks = arrays["grad.w"].shape[:2]
    for rank in range(ranks):
        pipeline = Pipeline(config_of("residual|onebit"))
        for step in range(steps):
            for name in ("w", "b"):
                sent = send(pipeline, arrays[f"grad.{name}"][step, rank], name)
                decoded = arrays[f"decoded.{name}"][step, rank].ravel()
                np.testing.assert_allclose(sent, decoded, rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(
                    residual_of(pipeline, name),
                    arrays[f"residual.{name}"][step, rank].ravel(),
                    rtol=1e-5,
                    atol=2e-6,
                )


# terngrad


def ternary_scale(x: np.ndarray, clip: float) -> np.float32:
    largest = np.abs(x).max()
    if clip == 0:
        return largest
    return min(largest, np.float32(clip * x.std(dtype=np.float64)))


def ternary(x: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The signs that are kept; ``uniform`` in [0, scale)."""
    return np.where(uniform < np.abs(x), np.sign(x), 0)


@pytest.mark.parametrize("clip", [2.5, 0.0, 1.0])
@pytest.mark.parametrize("n", [1, 4, 5, 6, 1279, 1280, 1283, 70_001])
def test_terngrad_equals_its_definition(clip: float, n: int) -> None:
    x = normal(n, n) + np.float32(0.01)
    codec = get_codec(f"terngrad(clip={clip})")
    payload = codec.encode_payload(x, seed=5)
    assert payload.size == 4 + -(-n // 5)
    scale = payload[:4].view(np.float32)[0]
    assert scale == pytest.approx(ternary_scale(x, clip), rel=1e-6)
    uniform = (words_of(n, 5) >> 8).astype(np.float32) * np.float32(2.0**-24) * scale
    decoded = codec.decode_payload(payload, n)
    np.testing.assert_array_equal(decoded, ternary(x, uniform).astype(np.float32) * scale)


def test_terngrad_packs_five_digits_in_strides() -> None:
    x = np.array([1, -1, 0, 0, 1, 1, -1], np.float32)
    payload = get_codec("terngrad(clip=0)").encode_payload(x)
    # Two bytes: the elements 0, 2, 4, 6 and 1, 3, 5; the last digits are beyond the end.
    assert payload[4:].tolist() == [1 + 0 + 9 * 1 + 27 * 2, 2 + 0 + 9 * 1]


def test_terngrad_is_that_of_grace_with_its_draws() -> None:
    for grad, digits, scalar, draws in messages(
        "grace-terngrad-01", "grad", "wire_ternary", "wire_scalar", "rnd"
    ):
        scale = get_codec("terngrad").encode_payload(grad)[:4].view(np.float32)
        np.testing.assert_allclose(scale, scalar, rtol=1e-5)
        clear = np.abs(draws - np.abs(grad)) > 1e-5 * scalar
        assert clear.mean() > 0.9
        assert (ternary(grad, draws) == digits)[clear].all()


def test_terngrad_clips_what_is_far_out() -> None:
    x = np.append(normal(999), np.float32(1000))
    assert np.abs(roundtrip("terngrad", x)).max() == pytest.approx(2.5 * x.std(), rel=1e-5)
    assert np.abs(roundtrip("terngrad(clip=0)", x)).max() == 1000


# natural


def natural_codes(x: np.ndarray, draws: np.ndarray) -> np.ndarray:
    bits = x.view(np.int32)
    exponent = (bits >> 23 & 0xFF) + ((bits & 0x7FFFFF) > draws)
    code = np.clip(exponent - 18, 0, 127)
    return np.where((code > 0) & (bits < 0), code | 0x80, code).astype(np.uint8)


def test_natural_equals_its_definition() -> None:
    n = 70_001
    x = normal(n) * np.exp2(np.random.default_rng(1).integers(-125, 30, n)).astype(np.float32)
    payload = get_codec("natural").encode_payload(x, seed=9)
    draws = (words_of(n, 9) >> 9).astype(np.int32)
    np.testing.assert_array_equal(payload, natural_codes(x, draws))


@pytest.mark.parametrize("above", [0, 1])
def test_the_whole_rounding_word_decides(above: int) -> None:
    # Significands at the very draws: the word's upper half, of 16 bits, cannot tell.
    draws = words_of(10_000, 11) >> 9
    significands = np.minimum(draws + np.uint32(above), 2**23 - 1)
    x = (significands | np.uint32(127 << 23)).view(np.float32)
    assert (roundtrip("natural", x, seed=11) == np.where(significands > draws, 2, 1)).all()


@pytest.mark.parametrize("fraction", [0.3, 0.5, 2.0**-12])
def test_elements_are_rounded_independently(fraction: float) -> None:
    # Elements i and i + 16 share a random word, and are independent as well.
    n = 2**22
    up = (roundtrip("natural", np.full(n, 1 + fraction, np.float32), seed=12) == 2).astype(np.int8)
    error = up - fraction
    variance = fraction * (1 - fraction)
    assert abs(error.mean()) < 5 * np.sqrt(variance / n)
    for lag in (1, 2, 4, 8, 15, 16, 17, 32, 64):
        covariance = np.mean(error[:-lag] * error[lag:])
        assert abs(covariance) < 5 * variance / np.sqrt(n)


def test_natural_is_that_of_grace_with_its_draws() -> None:
    decode = get_codec("natural").decode_payload
    for grad, codes, draws, decoded in messages(
        "grace-natural-01", "grad", "wire_code", "rnd", "decoded"
    ):
        expected = np.where(codes == 0x80, 0, codes)  # theirs has a negative zero
        np.testing.assert_array_equal(natural_codes(grad, draws), expected)
        np.testing.assert_array_equal(decode(expected, grad.size), decoded)


def test_natural_decodes_every_code() -> None:
    decoded = get_codec("natural").decode_payload(np.arange(256, dtype=np.uint8), 256)
    powers = np.exp2(np.arange(1, 128) - 109.0).astype(np.float32)
    assert decoded[0] == 0
    np.testing.assert_array_equal(decoded[1:128], powers)
    assert np.isnan(decoded[128])
    np.testing.assert_array_equal(decoded[129:], -powers)


def test_natural_saturates_and_underflows() -> None:
    x = np.array([3e38, -3e38, 2.0**18, 1e-38, -1e-45, -0.0], np.float32)
    expected = [2.0**18, -(2.0**18), 2.0**18, 0, 0, 0]
    assert roundtrip("natural", x).tolist() == expected
    assert not np.signbit(roundtrip("natural", x)[3:]).any()


# int8 and int4


@pytest.mark.parametrize(("name", "limit"), [("int8", 127), ("int4", 7)])
@pytest.mark.parametrize("bucket", [17, 512, 5000])
@pytest.mark.parametrize("n", [1, 16, 511, 5121, 70_001])
def test_linear_is_within_half_a_step(name: str, limit: int, bucket: int, n: int) -> None:
    x = normal(n, n)
    error = np.abs(roundtrip(f"{name}(bucket={bucket})", x) - x)
    for begin in range(0, n, bucket):
        step = np.abs(x[begin : begin + bucket]).max() / limit
        assert (error[begin : begin + bucket] <= step * 0.500001).all()


@pytest.mark.parametrize("bucket", [17, 512, 5000])
@pytest.mark.parametrize("n", [1, 63, 5121])
def test_stochastic_rounding_equals_its_definition(bucket: int, n: int) -> None:
    x = normal(n, n)
    payload = get_codec(f"int8(bucket={bucket},rounding=stochastic)").encode_payload(x, seed=8)
    noise = (words_of(n, 8) >> 8).astype(np.int64)
    for begin in range(0, n, bucket):
        part = x[begin : begin + bucket]
        scale = np.abs(part).max() / np.float32(127)
        scaled = np.clip(part * (np.float32(1) / scale), -127, 127)
        fixed = np.trunc(scaled.astype(np.float64) * 2**24).astype(np.int64)
        at = begin + 4 * (begin // bucket)
        assert payload[at : at + 4].view(np.float32)[0] == scale
        levels = payload[at + 4 : at + 4 + part.size].view(np.int8)
        np.testing.assert_array_equal(levels, fixed + noise[begin : begin + bucket] >> 24)


def test_int8_payload() -> None:
    x = np.array([127, -63.4, 0.5, 1.5, -127] + [0] * 12 + [1e-3], np.float32)
    payload = get_codec("int8(bucket=17)").encode_payload(x)
    assert payload[:4].view(np.float32)[0] == 1
    assert payload[4:21].view(np.int8).tolist() == [127, -63, 0, 2, -127] + [0] * 12
    assert payload[21:25].view(np.float32)[0] == np.float32(1e-3) / np.float32(127)
    assert payload[25:].view(np.int8).tolist() == [127]


def test_int4_payload() -> None:
    x = np.array([7, -7, 3, -2.6, 1], np.float32)
    payload = get_codec("int4").encode_payload(x)
    assert payload[:4].view(np.float32)[0] == 1
    assert payload[4:].tolist() == [0x97, 0xD3, 0x01]


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_the_ends_of_the_float32_range(name: str, rounding: str) -> None:
    spec = f"{name}(rounding={rounding})"
    huge = np.array([FLOAT32_MAX, -FLOAT32_MAX], np.float32)
    np.testing.assert_allclose(roundtrip(spec, huge), huge, rtol=1e-6)
    # Steps below the smallest normal number have no finite inverse: those buckets are zeros.
    tiny = np.array([1e-45, -1e-40, 1e-38], np.float32)
    assert roundtrip(spec, tiny).tolist() == [0, 0, 0]
    small = np.array([2e-36, -2e-36], np.float32)
    np.testing.assert_allclose(roundtrip(spec, small), small, rtol=1e-6)


# blockwise8


def dynamic_map() -> np.ndarray:
    """The result of bitsandbytes.functional.create_dynamic_map(signed=True)."""
    data = [0.0, 1.0]
    for i in range(7):
        boundaries = torch.linspace(0.1, 1, 2**i + 1)
        means = (boundaries[:-1] + boundaries[1:]) / 2.0
        for sign in (1, -1):
            data += (sign * 10 ** (i - 6) * means).tolist()
    return np.sort(np.array(data, np.float32))


def our_map() -> np.ndarray:
    payload = np.concatenate(
        [np.ones(1, np.float32).view(np.uint8), np.arange(256, dtype=np.uint8)]
    )
    return get_codec("blockwise8").decode_payload(payload, 256)


def test_the_map_is_the_dynamic_map() -> None:
    np.testing.assert_allclose(our_map(), dynamic_map(), rtol=2e-7, atol=0)


def test_the_map_is_the_formula_rounded_once() -> None:
    values = [0.0, 1.0]
    for i in range(7):
        for j in range(2**i):
            value = (2 ** (i + 1) + 9 * (2 * j + 1)) / (10 ** (7 - i) * 2 ** (i + 1))
            values += [value, -value]
    np.testing.assert_array_equal(our_map(), np.sort(np.array(values).astype(np.float32)))


def test_blockwise8_takes_the_nearest_value() -> None:
    x = normal(10_000) ** 5  # over many decades
    payload = get_codec("blockwise8").encode_payload(x)
    assert payload.size == 10_000 + 3 * 4
    values = our_map().astype(np.float64)
    for block in range(3):
        part = x[4096 * block : 4096 * (block + 1)]
        at = 4100 * block
        largest = np.abs(part).max()
        assert payload[at : at + 4].view(np.float32)[0] == largest
        distance = np.abs(values - (part / largest)[:, None].astype(np.float64))
        codes = payload[at + 4 : at + 4 + part.size]
        np.testing.assert_array_equal(codes, distance.argmin(axis=1))


# All


@pytest.mark.parametrize("spec", RANDOM)
def test_the_mean_of_many_draws_is_the_gradient(spec: str) -> None:
    values = np.array([1.0, -0.9, -0.51, -0.013, 0.0, 0.1, 0.3, 0.77], np.float32)
    draws = roundtrip(spec, np.tile(values, 40_000)).reshape(-1, values.size).astype(np.float64)
    sigma = draws.std(axis=0) / np.sqrt(len(draws))
    assert (sigma > 0).sum() >= 6  # the first, 0, and values on a level are not random
    assert (np.abs(draws.mean(axis=0) - values) <= 5 * sigma + 1e-7).all()


@pytest.mark.parametrize("spec", RANDOM)
def test_noise_depends_on_the_step_and_decoding_does_not(spec: str) -> None:
    codec = get_codec(spec)
    assert "private_noise" in codec.caps
    assert "seeded" not in codec.caps
    x = normal(1000)
    assert codec.encode(x, step=1).tobytes() != codec.encode(x, step=2).tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("spec", "reach"),
    [
        ("sign", 9000),
        ("onebit", 9000),
        ("terngrad", 9000),
        ("terngrad(clip=0)", 9000),
        ("natural", 1),
        ("int8", 512),
        ("int4(rounding=stochastic)", 512),
        ("fp8", 512),
        ("blockwise8", 4096),
    ],
)
def test_a_nonfinite_element_shows_at_the_receivers(spec: str, reach: int, bad: float) -> None:
    x = normal(9000)
    x[5000] = bad
    begin = 5000 // reach * reach
    expected = np.zeros(9000, bool)
    expected[begin : begin + reach] = True
    np.testing.assert_array_equal(np.isnan(roundtrip(spec, x)), expected)


@pytest.mark.parametrize("spec", ["sign", "onebit", "terngrad", "natural", "int8", "int4", *RANDOM])
def test_zeros_stay_zeros(spec: str) -> None:
    assert roundtrip(spec, np.zeros(3000, np.float32)).tolist() == [0] * 3000
    assert roundtrip(spec, -np.zeros(3000, np.float32)).tolist() == [0] * 3000


@pytest.mark.parametrize(
    ("spec", "n", "codes"),
    [
        ("sign", 9, [0, 0b10]),
        ("onebit", 1, [0b10]),
        ("terngrad", 10, [0, 243]),
        ("terngrad", 4, [81]),
        ("terngrad", 1281, [0] * 256 + [3]),
        ("int8", 3, [0, 128, 0]),
        ("int4", 4, [0x08, 0]),
        ("int4", 4, [0, 0x80]),
        ("int4", 3, [0, 0x10]),
        ("fp8", 3, [0, 0x7F, 0]),
        ("fp8", 3, [0xFF, 0, 0]),
        ("fp8(format=e5m2)", 3, [0, 0, 0x7C]),
        ("fp8(format=e5m2)", 3, [0, 0xFD, 0]),
    ],
)
def test_codes_out_of_range_are_refused(spec: str, n: int, codes: list[int]) -> None:
    codec = get_codec(spec)
    head = codec.encode_payload(np.ones(n, np.float32)).size - len(codes)
    payload = np.array([0] * head + codes, np.uint8)
    check_refused(codec, payload, n)
    with pytest.raises(WireError):
        codec.decode_payload(payload, n)
