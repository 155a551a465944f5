"""polar_b: its rate, its error, its mean, and what it does with values that do not fit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from decoder import decode

from gradcomp import SpecError, WireError, get_codec
from gradcomp.codec.spec import parse

FloatArray = npt.NDArray[np.float32]
f32 = np.float32

RATES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)


def roundtrip(spec: str, x: FloatArray, step: int = 0) -> FloatArray:
    codec = get_codec(spec)
    payload = codec.encode_payload(x, step=step)
    return codec.decode_payload(payload, x.size, step=step)


def vnmse(x: FloatArray, y: FloatArray) -> float:
    """Mean square of the error over that of x."""
    error = x.astype(float) - y
    return float(error @ error / np.sum(x.astype(float) ** 2))


def normal(n: int, seed: int = 1) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(n).astype(f32)


@pytest.mark.parametrize(
    ("rate", "limit"), [(1 / 16, 0.930), (1 / 8, 0.860), (1 / 4, 0.730), (1 / 2, 0.529)]
)
@pytest.mark.parametrize("prefix", ["", "rotate|"])
def test_the_error_is_close_to_the_bound(prefix: str, rate: float, limit: float) -> None:
    x = normal(1 << 20)
    error = vnmse(x, roundtrip(f"{prefix}polar_b(rate={rate},n=16384)", x))
    assert 2.0 ** (-2 * rate) < error <= limit


@pytest.mark.parametrize("n", [1024, 4096])
@pytest.mark.parametrize("rate", RATES)
def test_short_codes_lose_little(n: int, rate: float) -> None:
    x = normal(1 << 18)
    error = vnmse(x, roundtrip(f"polar_b(rate={rate},n={n})", x))
    # The gap is largest near 1/4 bit: the error grows by 3.7 % at n = 4096, 4.9 % at n = 1024.
    assert error < 2.0 ** (-2 * rate) * (1.09 if rate == 0.5 else 1.055)


def test_rotation_makes_any_gradient_normal() -> None:
    x = np.exp(normal(1 << 18)) * np.sign(normal(1 << 18, 2))
    error = vnmse(x, roundtrip("rotate|polar_b(rate=0.5,n=4096)", x))
    assert error < 0.54


@pytest.mark.parametrize(
    "numel", [63, 64, 65, 1000, 4095, 4096, 4097, 8191, 12_300, 65_536, 70_000, 200_001]
)
@pytest.mark.parametrize(
    "spec",
    [
        "polar_b(rate=0.5)",
        "polar_b(rate=0.03125,n=4096)",
        "rotate|polar_b(rate=0.25)",
        "polar_b(rate=0.3,unbiased=true)",
    ],
)
def test_frames_follow_the_document(spec: str, numel: int) -> None:
    x = normal(numel, numel)
    codec = get_codec(spec)
    frame = codec.encode(x, seed=3, step=1)
    assert codec.decode(frame).tobytes() == decode(frame.tobytes(), codec.spec).tobytes()


@pytest.mark.parametrize("numel", [100_000, 100_003, 123_457, 1_000_001])
@pytest.mark.parametrize("rate", [*RATES, 0.1])
@pytest.mark.parametrize("spec", ["polar_b(rate={})", "polar_b(rate={},unbiased=true,n=1024)"])
def test_the_rate_is_that_of_the_frame(spec: str, rate: float, numel: int) -> None:
    frame = get_codec(spec.format(rate)).encode(np.zeros(numel, f32))
    assert 0.98 * rate < 8 * frame.size / numel <= rate


def test_small_tensors_are_no_smaller_than_a_word_and_a_scale() -> None:
    codec = get_codec("polar_b(rate=0.03125)")
    assert codec.encode_payload(normal(64)).size == 12
    assert codec.encode_payload(normal(2000)).size == 12
    x = normal(63)
    assert codec.decode_payload(codec.encode_payload(x), 63).tobytes() == x.tobytes()


@pytest.mark.parametrize("rate", ["0.03", "0.51", "1"])
def test_other_rates_are_refused(rate: str) -> None:
    with pytest.raises(SpecError, match=r"\[0\.03125, 0\.5\]"):
        get_codec(f"polar_b(rate={rate})")


def test_the_unbiased_scale_takes_no_memory() -> None:
    with pytest.raises(SpecError, match="diverges"):
        parse("residual|polar_b(unbiased=true)")
    with pytest.raises(SpecError, match="diverges"):
        parse("signum|polar_b(unbiased=true)")


@pytest.mark.parametrize("rate", [1 / 8, 1 / 2])
@pytest.mark.parametrize("shape", ["normal", "lognormal", "steps"])
def test_the_mean_of_64_is_right(rate: float, shape: str) -> None:
    x = normal(200_000)
    if shape == "lognormal":
        x *= np.exp(normal(x.size, 2))
    elif shape == "steps":  # parts of very different sizes, in one segment
        x *= np.repeat(np.array([0.01, 1, 0.1, 3], f32), x.size // 4)
    mean = np.zeros(x.size)
    single = 0.0
    for step in range(64):
        y = roundtrip(f"polar_b(rate={rate},unbiased=true)", x, step)
        mean += y / np.float64(64)
        single += vnmse(x, y) / 64
    error = float(np.sum((mean - x) ** 2) / np.sum(x.astype(float) ** 2))
    assert error == pytest.approx(single / 64, rel=0.03)


def test_a_sample_that_misleads_is_noticed() -> None:
    # All that is sampled is small, or zero; in another order the same elements mislead nobody.
    x = normal(1 << 16)
    runs = x.reshape(-1, 32, 512)
    sampled = np.arange(4) * 5 % 32
    for small in (0.0, 1e-3, 30.0):
        scaled = runs.copy()
        scaled[np.arange(4), sampled] *= f32(small)
        y = scaled.ravel()
        error = vnmse(y, roundtrip("polar_b(rate=0.25)", y))
        shuffled = np.roll(scaled, 1, axis=1).ravel()
        assert error == pytest.approx(
            vnmse(shuffled, roundtrip("polar_b(rate=0.25)", shuffled)), rel=0.02
        )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("spec", ["polar_b(n=1024)", "rotate|polar_b(n=1024)"])
def test_what_is_not_finite_shows_in_its_segment(spec: str, bad: float) -> None:
    x = normal(140_000)
    segment = np.arange(x.size) // 65536  # and the rest
    for place in (0, 65_535, 70_000):
        y = x.copy()
        y[place] = bad
        assert np.array_equal(np.isnan(roundtrip(spec, y)), segment == segment[place])
    y = x.copy()
    y[-1] = bad
    assert np.array_equal(np.isnan(roundtrip(spec, y)), np.arange(x.size) >= 131_072)


def test_huge_and_tiny_values() -> None:
    for spec in ("polar_b", "rotate|polar_b", "polar_b(unbiased=true)"):
        for n in (64, 5000):
            assert not roundtrip(spec, np.zeros(n, f32)).any()
            assert np.isfinite(roundtrip(spec, np.full(n, 1e-44, f32))).all()
    x = np.full(5000, 3e38, f32)
    assert np.isfinite(roundtrip("polar_b", x)).all()
    assert np.isnan(roundtrip("rotate|polar_b", x)).all()


@pytest.mark.parametrize("preset", ["", "preset=best"])
def test_the_largest_floats_stay_finite(preset: str) -> None:
    largest = np.finfo(f32).max
    for n in range(64, 400):
        x = np.full(n, largest)
        assert np.isfinite(roundtrip(f"polar_b({preset})", x)).all(), n
        x[::2] *= f32(0.92)  # log-likelihood ratios are rounded up
        assert np.isfinite(roundtrip(f"polar_b({preset})", x)).all(), n


def test_hostile_scales_and_sizes() -> None:
    n = 5000
    codec = get_codec("polar_b(unbiased=true)")
    payload = codec.encode_payload(np.ones(n, f32))
    for bits in (0x7FC00001, 0xFF800000, 0x7F7FFFFF, 0xF1800001):
        hostile = payload.copy()
        hostile[:4] = np.array([bits], np.uint32).view(np.uint8)
        decoded = codec.decode_payload(hostile, n)
        assert (decoded.view(np.uint32) == 0x7FC00000).all()
    for wrong in (payload[:-1], payload[:5], np.append(payload, payload[:1])):
        acc = np.ones(n, f32)
        with pytest.raises(WireError):
            codec.decode_payload_add(wrong, acc)
        assert (acc == 1).all()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("n", [1024, 4096])
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("prefix", ["", "rotate|"])
def test_best_is_better(prefix: str, rate: float, n: int, seed: int) -> None:
    x = normal(1 << 18, seed)
    plain = vnmse(x, roundtrip(f"{prefix}polar_b(rate={rate},n={n})", x))
    best = vnmse(x, roundtrip(f"{prefix}polar_b(rate={rate},n={n},preset=best)", x))
    # Of the gap to 2^(-2 rate), a fifth to a third goes.
    bound = 2.0 ** (-2 * rate)
    assert bound < best < plain - 0.15 * (plain - bound)


@pytest.mark.parametrize("numel", [64, 100, 1000, 4096, 5000, 10_000, 40_000])
def test_best_is_not_worse_for_small_tensors(numel: int) -> None:
    for seed in range(5):
        x = normal(numel, seed)
        plain = vnmse(x, roundtrip("polar_b(rate=0.5)", x))
        assert vnmse(x, roundtrip("polar_b(rate=0.5,preset=best)", x)) <= plain
