"""polar_ec: its rate, its error, its mean, and what it does with values that do not fit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from decoder import decode

from gradcomp import SpecError, WireError, get_codec
from gradcomp.codec.spec import parse

FloatArray = npt.NDArray[np.float32]
f32 = np.float32


def normal(n: int, seed: int = 1) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(n).astype(f32)


def gap(spec: str, x: FloatArray) -> float:
    """Decibels between the error and 2^(-2 rate), with the rate of the frame."""
    codec = get_codec(spec)
    frame = codec.encode(x)
    error = x.astype(float) - codec.decode(frame)
    rate = 8 * frame.size / x.size
    return float(10 * np.log10(error @ error / np.sum(x.astype(float) ** 2) * 4**rate))


def vnmse(x: FloatArray, y: npt.NDArray[np.floating]) -> float:
    """Mean square of the error over that of x."""
    return float(np.sum((x.astype(float) - y) ** 2) / np.sum(x.astype(float) ** 2))


@pytest.mark.parametrize("rate", [0.5, 0.75, 1, 2, 3, 4])
@pytest.mark.parametrize("prefix", ["", "rotate|"])
def test_the_error_is_close_to_the_bound(prefix: str, rate: float) -> None:
    assert 0 < gap(f"{prefix}polar_ec(rate={rate})", normal(1 << 20)) <= 0.30


@pytest.mark.parametrize(("n", "limit"), [(1024, 0.42), (4096, 0.34)])
@pytest.mark.parametrize("rate", [0.5, 1, 2])
def test_short_codes_lose_little(n: int, limit: float, rate: float) -> None:
    assert gap(f"polar_ec(rate={rate},n={n})", normal(1 << 18)) <= limit


def test_rotation_makes_any_gradient_normal() -> None:
    x = np.exp(normal(1 << 18)) * np.sign(normal(1 << 18, 2))
    assert gap("rotate|polar_ec(rate=1,n=4096)", x) < 0.36


@pytest.mark.parametrize("numel", [100_000, 100_003, 1_000_001])
@pytest.mark.parametrize("rate", [0.5, 0.6, 1, 1.7, 4])
@pytest.mark.parametrize("shape", ["normal", "laplace", "steps", "student3", "student1.5"])
@pytest.mark.parametrize("spec", ["polar_ec(rate={})", "rotate|polar_ec(rate={},n=1024)"])
def test_the_rate_is_that_of_the_frame(spec: str, shape: str, rate: float, numel: int) -> None:
    x = normal(numel)
    if shape == "laplace":
        x = np.random.default_rng(1).laplace(size=numel).astype(f32)
    elif shape == "steps":
        x *= np.repeat(np.array([0.1, 1, 0.3, 3], f32), numel // 4 + 1)[:numel]
    elif shape.startswith("student"):
        x = np.random.default_rng(1).standard_t(float(shape[7:]), numel).astype(f32)
    frame = get_codec(spec.format(rate)).encode(x)
    assert 8 * frame.size / numel == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize("zeros", [0.9, 0.99, 0.999])
@pytest.mark.parametrize("rate", [0.5, 0.6, 1, 2])
def test_what_is_mostly_zeros_takes_no_more_than_the_rate(rate: float, zeros: float) -> None:
    rng = np.random.default_rng(1)
    x = normal(200_000) * (rng.random(200_000) >= zeros).astype(f32)
    codec = get_codec(f"polar_ec(rate={rate})")
    frame = codec.encode(x)
    bits = 8 * frame.size / x.size
    error = vnmse(x, codec.decode(frame))
    assert bits <= 1.02 * rate
    # Where it takes less, the rest would not help.
    assert bits > 0.98 * rate or error < 1e-6
    assert error < 1


@pytest.mark.parametrize("shape", ["spike", "many"])
def test_elements_beyond_the_points_travel_as_they_are(shape: str) -> None:
    x = normal(300_000)
    if shape == "spike":
        x[[0, 77, 262_143, 262_144, 299_999]] = [1e3, -2e4, 5e3, -1e4, 1234]
    else:  # more than there is room for, in one part of the tensor
        x[:20_000] *= f32(1e9)
    codec = get_codec("polar_ec(rate=1)")
    frame = codec.encode(x)
    y = codec.decode(frame)
    assert y.tobytes() == decode(frame.tobytes(), codec.spec).tobytes()
    assert 8 * frame.size / x.size <= 1.02
    if shape == "spike":
        far = np.abs(x) > 999
        assert np.array_equal(x[far], y[far])
        assert vnmse(x[~far], y[~far]) < 0.3
        acc = np.ones(x.size, f32)
        codec.decode_add(frame, acc, 0.5)
        assert np.array_equal(acc, np.float32(1) + np.float32(0.5) * y)


def test_damaged_outliers_are_refused() -> None:
    x = normal(5000)
    x[[3, 1000]] = 1e9
    codec = get_codec("polar_ec(rate=1)")
    payload = codec.encode_payload(x)
    assert codec.decode_payload(payload, x.size)[1000] == f32(1e9)
    for position in (3, 2, 5000, 2**32 - 1):
        damaged = payload.copy()
        damaged[-8:-4] = np.array([position], np.uint32).view(np.uint8)
        acc = np.ones(x.size, f32)
        with pytest.raises(WireError, match="outlier 1"):
            codec.decode_payload_add(damaged, acc)
        assert (acc == 1).all()
    with pytest.raises(WireError, match="outliers"):
        codec.decode_payload(payload[:-1], x.size)


@pytest.mark.parametrize("numel", [63, 64, 65, 1000, 4095, 4096, 4097, 8191, 70_000, 300_001])
@pytest.mark.parametrize(
    "spec",
    [
        "polar_ec(rate=0.5)",
        "polar_ec(rate=3,n=4096)",
        "rotate|polar_ec(rate=1)",
        "polar_ec(rate=1,unbiased=true)",
    ],
)
def test_frames_follow_the_document(spec: str, numel: int) -> None:
    x = normal(numel, numel)
    codec = get_codec(spec)
    frame = codec.encode(x, seed=3, step=1)
    assert codec.decode(frame).tobytes() == decode(frame.tobytes(), codec.spec).tobytes()


def test_indices_of_every_width() -> None:
    # Heavy tails: outliers, up to 255 points on each side, and chunks of 8 bits an index.
    x = np.random.default_rng(1).standard_t(2, 300_000).astype(f32)
    for rate in (0.5, 1, 2, 4):
        codec = get_codec(f"polar_ec(rate={rate})")
        frame = codec.encode(x)
        assert codec.decode(frame).tobytes() == decode(frame.tobytes(), codec.spec).tobytes()
        assert vnmse(x, codec.decode(frame)) < 0.65


@pytest.mark.parametrize("rate", ["0.49", "4.1", "0"])
def test_other_rates_are_refused(rate: str) -> None:
    with pytest.raises(SpecError, match=r"\[0\.5, 4\]"):
        get_codec(f"polar_ec(rate={rate})")


def test_the_unbiased_scale_takes_no_memory() -> None:
    with pytest.raises(SpecError, match="diverges"):
        parse("residual|polar_ec(unbiased=true)")


@pytest.mark.parametrize("rate", [0.5, 1])
@pytest.mark.parametrize("shape", ["normal", "lognormal", "steps"])
def test_the_mean_of_64_is_right(rate: float, shape: str) -> None:
    x = normal(100_000)
    if shape == "lognormal":
        x *= np.exp(normal(x.size, 2))
    elif shape == "steps":  # parts of very different sizes, in one segment
        x *= np.repeat(np.array([0.01, 1, 0.1, 3], f32), x.size // 4)
    codec = get_codec(f"polar_ec(rate={rate},unbiased=true)")
    mean = np.zeros(x.size)
    single = 0.0
    for step in range(64):
        y = codec.decode_payload(codec.encode_payload(x, step=step), x.size, step=step)
        mean += y / np.float64(64)
        single += vnmse(x, y) / 64
    assert vnmse(x, mean) == pytest.approx(single / 64, rel=0.03)
    assert single < 1.25 / (4**rate - 1)


@pytest.mark.parametrize("quiet", [0.0, 1e-30, 1e-6, 1e-3])
def test_a_quiet_block_keeps_its_direction(quiet: float) -> None:
    x = normal(1 << 18)
    x[: 1 << 16] *= f32(quiet)  # a block at n = 1024
    codec = get_codec("polar_ec(rate=1,n=1024)")
    y = codec.decode(codec.encode(x))
    assert vnmse(x, y) < 0.3
    if quiet != 0:
        assert vnmse(x[: 1 << 16], y[: 1 << 16]) < 0.6


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("spec", ["polar_ec(n=1024)", "rotate|polar_ec(n=1024)"])
def test_what_is_not_finite_shows_in_its_segment(spec: str, bad: float) -> None:
    x = normal(140_000)
    codec = get_codec(spec)
    segment = np.arange(x.size) // 65536  # and the rest
    for place in (0, 65_535, 70_000):
        y = x.copy()
        y[place] = bad
        decoded = codec.decode(codec.encode(y))
        assert np.array_equal(np.isnan(decoded), segment == segment[place])


def test_huge_and_tiny_values() -> None:
    for spec in ("polar_ec", "rotate|polar_ec", "polar_ec(unbiased=true)"):
        codec = get_codec(spec)
        for n in (64, 5000):
            assert not codec.decode(codec.encode(np.zeros(n, f32))).any()
            assert np.isfinite(codec.decode(codec.encode(np.full(n, 1e-44, f32)))).all()
    codec = get_codec("polar_ec")
    for x in (np.full(5000, 3e38, f32), normal(5000) * f32(8e37)):
        assert np.isfinite(codec.decode(codec.encode(x))).all()
    one = np.zeros(5000, f32)
    one[77] = 3e38
    assert np.isfinite(codec.decode(codec.encode(one))).all()
    codec = get_codec("rotate|polar_ec")
    assert np.isnan(codec.decode(codec.encode(np.full(5000, 3e38, f32)))).all()


def test_hostile_scales_and_sizes() -> None:
    n = 5000
    codec = get_codec("polar_ec(unbiased=true)")
    payload = codec.encode_payload(np.ones(n, f32))
    for bits in (0x7FC00001, 0xFF800000, 0x7F7FFFFF, 0xF1800001):
        hostile = payload.copy()
        hostile[:4] = np.array([bits], np.uint32).view(np.uint8)
        decoded = codec.decode_payload(hostile, n)
        assert (decoded.view(np.uint32) == 0x7FC00000).all()
    for wrong in (payload[:-1], payload[:5], payload[:290], np.append(payload, payload[:1])):
        acc = np.ones(n, f32)
        with pytest.raises(WireError):
            codec.decode_payload_add(wrong, acc)
        assert (acc == 1).all()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("n", [1024, 4096])
@pytest.mark.parametrize("rate", [0.5, 1, 2, 4])
@pytest.mark.parametrize("prefix", ["", "rotate|"])
def test_best_is_better(prefix: str, rate: float, n: int, seed: int) -> None:
    x = normal(1 << 18, seed)
    plain = gap(f"{prefix}polar_ec(rate={rate},n={n})", x)
    assert 0 < gap(f"{prefix}polar_ec(rate={rate},n={n},preset=best)", x) < plain - 0.02
