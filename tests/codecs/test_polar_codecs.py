"""polar_b and polar_ec: rate, error, mean, and values that do not fit.

The laws of both codecs are over tables; those of one codec follow, with its own figures.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from decoder import decode

from gradcomp import SpecError, WireError, get_codec
from gradcomp.codec.spec import parse
from support.codecs import (
    check_hostile_scales,
    check_refused,
    check_wrong_sizes,
    error_of,
    roundtrip,
    settings_of_the_core,
    vnmse,
)
from support.gradients import normal

FloatArray = npt.NDArray[np.float32]
f32 = np.float32

NAMES = ["polar_b", "polar_ec"]
B_RATES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)


def gap(spec: str, x: FloatArray) -> float:
    """Decibels between the error and 2^(-2 rate), with the rate of the frame."""
    codec = get_codec(spec)
    frame = codec.encode(x)
    rate = 8 * frame.size / x.size
    return float(10 * np.log10(vnmse(x, codec.decode(frame)) * 4**rate))


def shaped(shape: str, n: int) -> FloatArray:
    """n elements of a distribution, or a normal vector with parts of very different sizes."""
    if shape == "laplace":
        return np.random.default_rng(1).laplace(size=n).astype(f32)
    if shape.startswith("student"):
        return np.random.default_rng(1).standard_t(float(shape[7:]), n).astype(f32)
    x = normal(n, 1)
    if shape == "lognormal":
        x *= np.exp(normal(n, 2))
    elif shape == "steps":  # all in one segment
        x *= np.repeat(np.array([0.01, 1, 0.1, 3], f32), n // 4)
    elif shape == "mild steps":
        x *= np.repeat(np.array([0.1, 1, 0.3, 3], f32), n // 4 + 1)[:n]
    return x


# Both codecs --------------------------------------------------------------------------------------

FRAMES = [
    (spec, numel)
    for sizes, specs in (
        (
            [63, 64, 65, 1000, 4095, 4096, 4097, 8191, 12_300, 65_536, 70_000, 200_001],
            [
                "polar_b(rate=0.5)",
                "polar_b(rate=0.03125,n=4096)",
                "rotate|polar_b(rate=0.25)",
                "polar_b(rate=0.3,unbiased=true)",
            ],
        ),
        (
            [63, 64, 65, 1000, 4095, 4096, 4097, 8191, 70_000, 300_001],
            [
                "polar_ec(rate=0.5)",
                "polar_ec(rate=3,n=4096)",
                "rotate|polar_ec(rate=1)",
                "polar_ec(rate=1,unbiased=true)",
            ],
        ),
        (
            [64, 65, 4097, 12_300, 70_000],
            [
                "polar_b(rate=0.5,preset=best)",
                "polar_b(rate=0.3,unbiased=true,preset=best)",
                "polar_ec(rate=0.5,preset=best)",
                "polar_ec(unbiased=true,preset=best)",
            ],
        ),
    )
    for spec in specs
    for numel in sizes
]


@pytest.mark.parametrize(("spec", "numel"), FRAMES)
def test_frames_follow_the_document(spec: str, numel: int) -> None:
    x = normal(numel, numel)
    codec = get_codec(spec)
    frame = codec.encode(x, seed=3, step=1)
    assert codec.decode(frame).tobytes() == decode(frame.tobytes(), codec.spec).tobytes()


@pytest.mark.parametrize(
    ("name", "rate", "allowed"),
    [
        *(("polar_b", rate, r"\[0\.03125, 0\.5\]") for rate in ("0.03", "0.51", "1")),
        *(("polar_ec", rate, r"\[0\.5, 4\]") for rate in ("0.49", "4.1", "0")),
    ],
)
def test_other_rates_are_refused(name: str, rate: str, allowed: str) -> None:
    with pytest.raises(SpecError, match=allowed):
        get_codec(f"{name}(rate={rate})")


@pytest.mark.parametrize("memory", ["residual", "signum"])
@pytest.mark.parametrize("name", NAMES)
def test_the_unbiased_scale_takes_no_memory(name: str, memory: str) -> None:
    with pytest.raises(SpecError, match="diverges"):
        parse(f"{memory}|{name}(unbiased=true)")


def test_rotation_makes_any_gradient_normal() -> None:
    x = np.exp(normal(1 << 18, 1)) * np.sign(normal(1 << 18, 2))
    assert error_of("rotate|polar_b(rate=0.5,n=4096)", x) < 0.54
    assert gap("rotate|polar_ec(rate=1,n=4096)", x) < 0.36


@pytest.mark.parametrize(
    ("name", "rate", "n"),
    [
        *(("polar_b", rate, 200_000) for rate in (1 / 8, 1 / 2)),
        *(("polar_ec", rate, 100_000) for rate in (0.5, 1)),
    ],
)
@pytest.mark.parametrize("shape", ["normal", "lognormal", "steps"])
def test_the_mean_of_64_is_right(shape: str, name: str, rate: float, n: int) -> None:
    x = shaped(shape, n)
    codec = get_codec(f"{name}(rate={rate},unbiased=true)")
    mean = np.zeros(n)
    single = 0.0
    for step in range(64):
        y = codec.decode_payload(codec.encode_payload(x, step=step), n, step=step)
        mean += y / np.float64(64)
        single += vnmse(x, y) / 64
    assert vnmse(x, mean) == pytest.approx(single / 64, rel=0.03)
    if name == "polar_ec":
        assert single < 1.25 / (4**rate - 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("prefix", ["", "rotate|"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_shows_in_its_segment(name: str, prefix: str, bad: float) -> None:
    x = normal(140_000, 1)
    segment = np.arange(x.size) // 65536  # and the rest
    for place in (0, 65_535, 70_000, 139_999):
        y = x.copy()
        y[place] = bad
        decoded = roundtrip(f"{prefix}{name}(n=1024)", y)
        assert np.array_equal(np.isnan(decoded), segment == segment[place])


@pytest.mark.parametrize("name", NAMES)
def test_huge_and_tiny_values(name: str) -> None:
    for spec in (name, f"rotate|{name}", f"{name}(unbiased=true)"):
        for n in (64, 5000):
            assert not roundtrip(spec, np.zeros(n, f32)).any()
            assert np.isfinite(roundtrip(spec, np.full(n, 1e-44, f32))).all()
    one = np.zeros(5000, f32)
    one[77] = 3e38
    for x in (np.full(5000, 3e38, f32), normal(5000, 1) * f32(8e37), one):
        assert np.isfinite(roundtrip(name, x)).all()
    assert np.isnan(roundtrip(f"rotate|{name}", np.full(5000, 3e38, f32))).all()


@pytest.mark.parametrize("preset", ["", "preset=best"])
@pytest.mark.parametrize("name", NAMES)
def test_the_largest_floats_stay_finite(name: str, preset: str) -> None:
    largest = np.finfo(f32).max
    for n in range(64, 400):
        x = np.full(n, largest)
        assert np.isfinite(roundtrip(f"{name}({preset})", x)).all(), n
        x[::2] *= f32(0.92)  # log-likelihood ratios are rounded up
        assert np.isfinite(roundtrip(f"{name}({preset})", x)).all(), n


@pytest.mark.parametrize(("name", "kept"), [("polar_b", [-1, 5]), ("polar_ec", [-1, 5, 290])])
def test_hostile_scales_and_sizes(name: str, kept: list[int]) -> None:
    spec = f"{name}(unbiased=true)"
    check_hostile_scales(spec, 5000)
    check_wrong_sizes(spec, 5000, kept)


# preset=best


@pytest.mark.parametrize("name", NAMES)
def test_best_needs_no_decoder_of_its_own(name: str) -> None:
    x = normal(70_000, 1)
    plain, best = get_codec(name), get_codec(f"{name}(preset=best)")
    payload = best.encode_payload(x)
    decoded = [codec.decode_payload(payload, x.size).tobytes() for codec in (plain, best)]
    assert decoded[0] == decoded[1]
    assert payload.tobytes() != plain.encode_payload(x).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_best_is_the_same_at_every_simd_level_and_number_of_threads(name: str) -> None:
    x = normal(140_001, 1)
    codec = get_codec(f"rotate|{name}(n=1024,preset=best)")
    frames = {codec.encode(x).tobytes() for _ in settings_of_the_core(threads=(1, 2, 5))}
    assert len(frames) == 1


@pytest.mark.parametrize("name", NAMES)
def test_there_is_no_other_preset(name: str) -> None:
    with pytest.raises(SpecError, match="'preset' must be one of best, not 'fast'"):
        get_codec(f"{name}(preset=fast)")
    assert "preset" not in parse(name).canonical


# polar_b ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "limit"), [(1 / 16, 0.930), (1 / 8, 0.860), (1 / 4, 0.730), (1 / 2, 0.529)]
)
@pytest.mark.parametrize("prefix", ["", "rotate|"])
def test_the_error_of_polar_b_is_close_to_the_bound(prefix: str, rate: float, limit: float) -> None:
    error = error_of(f"{prefix}polar_b(rate={rate},n=16384)", normal(1 << 20, 1))
    assert 2.0 ** (-2 * rate) < error <= limit


@pytest.mark.parametrize("n", [1024, 4096])
@pytest.mark.parametrize("rate", B_RATES)
def test_short_codes_of_polar_b_lose_little(n: int, rate: float) -> None:
    error = error_of(f"polar_b(rate={rate},n={n})", normal(1 << 18, 1))
    # The gap is largest near 1/4 bit: the error grows by 3.7 % at n = 4096, 4.9 % at n = 1024.
    assert error < 2.0 ** (-2 * rate) * (1.09 if rate == 0.5 else 1.055)


@pytest.mark.parametrize("numel", [100_000, 100_003, 123_457, 1_000_001])
@pytest.mark.parametrize("rate", [*B_RATES, 0.1])
@pytest.mark.parametrize("spec", ["polar_b(rate={})", "polar_b(rate={},unbiased=true,n=1024)"])
def test_the_rate_of_polar_b_is_that_of_the_frame(spec: str, rate: float, numel: int) -> None:
    frame = get_codec(spec.format(rate)).encode(np.zeros(numel, f32))
    assert 0.98 * rate < 8 * frame.size / numel <= rate


def test_small_tensors_are_no_smaller_than_a_word_and_a_scale() -> None:
    codec = get_codec("polar_b(rate=0.03125)")
    assert codec.encode_payload(normal(64, 1)).size == 12
    assert codec.encode_payload(normal(2000, 1)).size == 12
    x = normal(63, 1)
    assert codec.decode_payload(codec.encode_payload(x), 63).tobytes() == x.tobytes()


def test_a_sample_that_misleads_is_noticed() -> None:
    # All that is sampled is small, or zero; in another order the same elements mislead nobody.
    runs = normal(1 << 16, 1).reshape(-1, 32, 512)
    sampled = np.arange(4) * 5 % 32
    for small in (0.0, 1e-3, 30.0):
        scaled = runs.copy()
        scaled[np.arange(4), sampled] *= f32(small)
        shuffled = np.roll(scaled, 1, axis=1)
        assert error_of("polar_b(rate=0.25)", scaled.ravel()) == pytest.approx(
            error_of("polar_b(rate=0.25)", shuffled.ravel()), rel=0.02
        )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("n", [1024, 4096])
@pytest.mark.parametrize("rate", B_RATES)
@pytest.mark.parametrize("prefix", ["", "rotate|"])
def test_best_is_better_than_plain_polar_b(prefix: str, rate: float, n: int, seed: int) -> None:
    x = normal(1 << 18, seed)
    plain = error_of(f"{prefix}polar_b(rate={rate},n={n})", x)
    best = error_of(f"{prefix}polar_b(rate={rate},n={n},preset=best)", x)
    # Of the gap to 2^(-2 rate), a fifth to a third goes.
    bound = 2.0 ** (-2 * rate)
    assert bound < best < plain - 0.15 * (plain - bound)


@pytest.mark.parametrize("numel", [64, 100, 1000, 4096, 5000, 10_000, 40_000])
def test_best_is_not_worse_for_small_tensors(numel: int) -> None:
    for seed in range(5):
        x = normal(numel, seed)
        plain = error_of("polar_b(rate=0.5)", x)
        assert error_of("polar_b(rate=0.5,preset=best)", x) <= plain


# polar_ec -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 0.75, 1, 2, 3, 4])
@pytest.mark.parametrize("prefix", ["", "rotate|"])
def test_the_error_of_polar_ec_is_close_to_the_bound(prefix: str, rate: float) -> None:
    assert 0 < gap(f"{prefix}polar_ec(rate={rate})", normal(1 << 20, 1)) <= 0.30


@pytest.mark.parametrize(("n", "limit"), [(1024, 0.42), (4096, 0.34)])
@pytest.mark.parametrize("rate", [0.5, 1, 2])
def test_short_codes_of_polar_ec_lose_little(n: int, limit: float, rate: float) -> None:
    assert gap(f"polar_ec(rate={rate},n={n})", normal(1 << 18, 1)) <= limit


@pytest.mark.parametrize("numel", [100_000, 100_003, 1_000_001])
@pytest.mark.parametrize("rate", [0.5, 0.6, 1, 1.7, 4])
@pytest.mark.parametrize("shape", ["normal", "laplace", "mild steps", "student3", "student1.5"])
@pytest.mark.parametrize("spec", ["polar_ec(rate={})", "rotate|polar_ec(rate={},n=1024)"])
def test_the_rate_of_polar_ec_is_that_of_the_frame(
    spec: str, shape: str, rate: float, numel: int
) -> None:
    frame = get_codec(spec.format(rate)).encode(shaped(shape, numel))
    assert 8 * frame.size / numel == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize("zeros", [0.9, 0.99, 0.999])
@pytest.mark.parametrize("rate", [0.5, 0.6, 1, 2])
def test_what_is_mostly_zeros_takes_no_more_than_the_rate(rate: float, zeros: float) -> None:
    rng = np.random.default_rng(1)
    x = normal(200_000, 1) * (rng.random(200_000) >= zeros).astype(f32)
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
    x = normal(300_000, 1)
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
    x = normal(5000, 1)
    x[[3, 1000]] = 1e9
    codec = get_codec("polar_ec(rate=1)")
    payload = codec.encode_payload(x)
    assert codec.decode_payload(payload, x.size)[1000] == f32(1e9)
    for position in (3, 2, 5000, 2**32 - 1):
        damaged = payload.copy()
        damaged[-8:-4] = np.array([position], np.uint32).view(np.uint8)
        check_refused(codec, damaged, x.size, "outlier 1")
    with pytest.raises(WireError, match="outliers"):
        codec.decode_payload(payload[:-1], x.size)


def test_indices_of_every_width() -> None:
    # Heavy tails: outliers, up to 255 points on each side, and chunks of 8 bits an index.
    x = shaped("student2", 300_000)
    for rate in (0.5, 1, 2, 4):
        codec = get_codec(f"polar_ec(rate={rate})")
        frame = codec.encode(x)
        assert codec.decode(frame).tobytes() == decode(frame.tobytes(), codec.spec).tobytes()
        assert vnmse(x, codec.decode(frame)) < 0.65


@pytest.mark.parametrize("quiet", [0.0, 1e-30, 1e-6, 1e-3])
def test_a_quiet_block_keeps_its_direction(quiet: float) -> None:
    x = normal(1 << 18, 1)
    x[: 1 << 16] *= f32(quiet)  # a block at n = 1024
    y = roundtrip("polar_ec(rate=1,n=1024)", x)
    assert vnmse(x, y) < 0.3
    if quiet != 0:
        assert vnmse(x[: 1 << 16], y[: 1 << 16]) < 0.6


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("n", [1024, 4096])
@pytest.mark.parametrize("rate", [0.5, 1, 2, 4])
@pytest.mark.parametrize("prefix", ["", "rotate|"])
def test_best_is_better_than_plain_polar_ec(prefix: str, rate: float, n: int, seed: int) -> None:
    x = normal(1 << 18, seed)
    plain = gap(f"{prefix}polar_ec(rate={rate},n={n})", x)
    assert 0 < gap(f"{prefix}polar_ec(rate={rate},n={n},preset=best)", x) < plain - 0.02
