"""rotate, uniform, eden and drive: their definitions, promises, and the reference data."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from decoder import Rotation, chosen_of_group, eden_values, read_packed

from golden.lloyd_max import centroids
from gradcomp import SpecError, get_codec
from gradcomp.codec.frame import inspect
from gradcomp.codec.spec import parse
from support.codecs import (
    check_hostile_scales,
    check_refused,
    check_wrong_sizes,
    roundtrip,
    settings_of_the_core,
    vnmse,
)
from support.reference import reference

ROOT = Path(__file__).parents[2]
FloatArray = npt.NDArray[np.float32]
f32 = np.float32

ROTATED = [f"eden(bits={bits})" for bits in range(1, 9)]
ROTATED += ["eden(bits=3,unbiased=false)", "drive", "drive(unbiased=false)"]
ROTATED += [f"rotate|uniform(bits={bits})" for bits in (1, 2, 3, 8)]
ROTATED += ["rotate|uniform(bits=4,clip=2.0,rounding=stochastic)"]
FRACTIONAL = ["eden(bits=0.5)", "eden(bits=0.03,unbiased=false)|rans", "eden(bits=1.5)"]
FRACTIONAL += ["eden(bits=2.75)|rans", "eden(bits=6.5)|elias_delta"]


# Frames, taken apart by the independent decoder's parts -------------------------------------------


def levels(spec: str) -> tuple[int, FloatArray]:
    """Bits per element, and the values of the symbols at scale 1."""
    if spec.startswith("drive"):
        return 1, np.array([-1, 1], f32)
    bits = int(re.search(r"bits=(\d)", spec)[1])
    if "uniform" in spec:
        return bits, (2 * np.arange(2**bits) - (2**bits - 1)).astype(f32)
    return bits, eden_values(bits)


def parts(
    spec: str, frame: npt.NDArray[np.uint8], n: int
) -> tuple[Rotation, FloatArray, npt.NDArray[np.int64]]:
    """The rotation, scales and symbols of a frame."""
    rotation = Rotation(n, inspect(frame).stream)
    scales = frame[32 : 32 + 4 * len(rotation.groups)].view(f32)
    bits, _ = levels(spec)
    symbols = read_packed(frame[32 + 4 * len(scales) : -4].tobytes(), bits, n)
    return rotation, scales, symbols


@pytest.mark.parametrize("spec", ROTATED)
@pytest.mark.parametrize("n", [64, 100, 2048, 4096, 4097, 9000, 12288])
def test_frames_follow_the_document(spec: str, n: int) -> None:
    x = np.random.default_rng(n).laplace(size=n).astype(f32)
    codec = get_codec(spec)
    frame = codec.encode(x, seed=n, step=2)
    rotation, scales, symbols = parts(spec, frame, n)
    assert (scales > 0).all()
    rotated = rotation.forward(x)
    decoded = np.empty_like(x)
    _, table = levels(spec)
    for scale, (begin, end) in zip(scales, rotation.groups, strict=True):
        decoded[begin:end] = (scale * table)[symbols[begin:end]]
        r, q = rotated[begin:end].astype(float), table[symbols[begin:end]].astype(float)
        if "uniform" in spec:
            most, rms = np.abs(r).max(), np.sqrt(np.mean(r**2))
            # The outermost level never exceeds the largest magnitude.
            assert scale * table[-1] <= most * (1 + 1e-6)
            if "clip" in spec:
                assert scale * table[-1] == pytest.approx(min(most, 2 * rms), rel=1e-6)
            elif "stochastic" not in spec:
                at = np.clip(r / (2 * scale) + table[-1] / 2, 0, table[-1])
                assert np.abs(at - symbols[begin:end]).max() < 0.5 + 1e-4
        else:
            expected = r @ q / (q @ q) if "unbiased=false" in spec else r @ r / (r @ q)
            assert scale == pytest.approx(expected, rel=1e-6)
            unit = r / np.sqrt(np.mean(r**2))
            error = np.abs(unit - (q if "eden" in spec else np.sign(q)))
            nearest = np.abs(unit[:, None] - table).min(axis=1)
            assert (error <= nearest + 1e-5).all()
    assert codec.decode(frame).tobytes() == rotation.inverse(decoded).tobytes()


@pytest.mark.parametrize(
    "spec",
    [
        "rotate|uniform(bits=3)",
        "rotate|uniform(rounding=stochastic)",
        "drive(two_means=true)",
        *FRACTIONAL,
    ],
)
@pytest.mark.parametrize("n", [0, 1, 3, 65, 6000, 200_001])
def test_neither_threads_nor_instructions_change_a_rotation(spec: str, n: int) -> None:
    x = np.random.default_rng(n).normal(size=n).astype(f32)
    codec = get_codec(spec)
    results = set()
    for _ in settings_of_the_core():
        frame = codec.encode(x, seed=n)
        acc = np.ones(n, f32)
        codec.decode_add(frame, acc, 0.3)
        decoded = codec.decode(frame)
        assert acc.tobytes() == (np.ones(n, f32) + f32(0.3) * decoded).tobytes()
        results.add((frame.tobytes(), decoded.tobytes()))
    assert len(results) == 1


def test_the_tables_are_those_of_the_script() -> None:
    text = (ROOT / "csrc" / "coding" / "lloyd_max.cpp").read_text()
    body = text[text.index("{", text.index("kCentroids")) + 1 : text.index("};")]
    numbers = [float(number) for number in re.findall(r"(\d[\d.]*)f", body)]
    expected = [value for bits in range(1, 9) for value in centroids(bits)]
    assert np.array_equal(np.array(numbers, f32), np.array(expected, f32))
    # Max, Quantizing for Minimum Distortion, 1960, table I.
    assert np.round(centroids(2), 4).tolist() == [0.4528, 1.5104]
    assert np.round(centroids(3), 4).tolist() == [0.2451, 0.756, 1.3439, 2.1519]
    assert np.round(centroids(5)[-1], 3) == 3.261


# Reference data -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "spec", "key"),
    [("eden-01", f"eden(bits={bits})", f".{bits}") for bits in (1, 2, 3, 4)]
    + [("eden-02", f"eden(bits={bits})", f".{bits}") for bits in (1, 2, 4)]
    + [("drive-01", "drive", ""), ("drive-02", "drive", "")],
)
def test_the_reference_implementation_agrees(case: str, spec: str, key: str) -> None:
    meta, data = reference(case)
    diagonal = data[f"diagonal{key}"].astype(f32)
    n = diagonal.size
    x = np.zeros(n, f32)
    x[: data["x"].size] = data["x"]
    codec = get_codec(spec)
    # Signs that turn our diagonal into the reference's.
    ours = Rotation(n, inspect(codec.encode(x)).stream).signs(0)
    frame = codec.encode(x * diagonal * ours)
    rotation, scales, symbols = parts(spec, frame, n)
    close = {"rtol": meta["tolerance"]["rtol"], "atol": meta["tolerance"]["atol"]}
    np.testing.assert_allclose(
        rotation.forward(x * diagonal * ours), data[f"rotated{key}"], **close
    )
    expected = data[f"assignment{key}"] if "eden" in spec else data["sign"] > 0
    np.testing.assert_array_equal(symbols, expected)
    np.testing.assert_allclose(scales, data[f"scale{key}"], **close)
    decoded = (codec.decode(frame) * diagonal * ours)[: data["x"].size]
    np.testing.assert_allclose(decoded, data[f"reconstruction{key}"], **close)
    expected = meta["vnmse"][key[1:] or "drive"]
    assert vnmse(data["x"], decoded) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("case", ["drive-01", "drive-02"])
def test_two_means_are_those_of_the_reference_implementation(case: str) -> None:
    """DRIVE+: the means of a group, and the elements that decode to each."""
    meta, data = reference(case)
    diagonal = data["diagonal"].astype(f32)
    n = diagonal.size
    codec = get_codec("drive(two_means=true)")
    ours = Rotation(n, inspect(codec.encode(data["x"])).stream).signs(0)
    payload = codec.encode_payload(data["x"] * diagonal * ours)
    close = {"rtol": meta["tolerance"]["rtol"], "atol": meta["tolerance"]["atol"]}
    np.testing.assert_allclose(payload[:8].view(f32), data["plus_centers"], **close)
    np.testing.assert_array_equal(
        read_packed(payload[8:].tobytes(), 1, n) == 0, data["plus_assignment"]
    )
    decoded = codec.decode_payload(payload, n) * diagonal * ours
    np.testing.assert_allclose(decoded, data["plus_reconstruction"], **close)
    assert vnmse(data["x"], decoded) == pytest.approx(meta["vnmse"]["drive_plus"], rel=1e-4)


@pytest.mark.parametrize("unbiased", ["true", "false"])
@pytest.mark.parametrize("n", [64, 100, 4096, 4097, 9000])
def test_two_means_follow_the_document(n: int, unbiased: str) -> None:
    x = np.random.default_rng(n).laplace(size=n).astype(f32)
    codec = get_codec(f"drive(two_means=true,unbiased={unbiased})")
    frame = codec.encode(x, seed=n, step=2)
    rotation = Rotation(n, inspect(frame).stream)
    rotated = rotation.forward(x)
    groups = rotation.groups
    sent = frame[32 : 32 + 8 * len(groups)].view(f32).reshape(-1, 2)
    symbols = read_packed(frame[32 + 8 * len(groups) : -4].tobytes(), 1, n)
    decoded = np.empty_like(x)
    for means, (begin, end) in zip(sent, groups, strict=True):
        r = rotated[begin:end].astype(np.float64)
        bound = np.float64(f32(r.mean()))
        parts = two_parts(r, bound)
        for _ in range(3):
            before, bound = parts, np.float64(f32((parts[0][0] + parts[1][0]) / 2))
            parts = two_parts(r, bound)
            if parts[0][1] == before[0][1]:
                break
        energy = sum(mean**2 * size for mean, size in parts)
        factor = r @ r / energy if unbiased == "true" else 1
        np.testing.assert_allclose(means, [factor * mean for mean, _ in parts], rtol=1e-6)
        np.testing.assert_array_equal(symbols[begin:end], r >= bound)
        decoded[begin:end] = means[symbols[begin:end]]
    assert codec.decode(frame).tobytes() == rotation.inverse(decoded).tobytes()


def two_parts(
    r: npt.NDArray[np.float64], bound: np.float64
) -> tuple[tuple[float, int], tuple[float, int]]:
    """Mean and size of the elements below a bound, and of the others."""
    parts = r[r < bound], r[r >= bound]
    low, high = ((float(part.mean()) if part.size else 0.0, part.size) for part in parts)
    return low, high


Mixed = tuple[float, npt.NDArray[np.float64]]


def mixed(
    r: npt.NDArray[np.float64], chosen: npt.NDArray[np.bool_], bits: float, unbiased: bool
) -> Mixed:
    """Scale and unscaled values of a group that EDEN sends in ``bits`` bits, not a whole number."""
    w = int(bits)
    unit = r / np.sqrt(np.mean(r**2))
    q = np.zeros(r.size)
    for mask, of_mask in ((chosen, w + 1), (~chosen, w)):
        if of_mask > 0:
            table = eden_values(of_mask).astype(np.float64)
            q[mask] = table[np.searchsorted((table[1:] + table[:-1]) / 2, unit[mask])]
    if not unbiased:
        return r @ q / (q @ q), q
    if w > 0:
        return r @ r / (r @ q), q
    return r[chosen] @ r[chosen] / (r @ q) * r.size / chosen.sum(), q


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("bits", [0.001, 0.5, 0.9, 1.5, 1.9999, 2.5, 6.25])
@pytest.mark.parametrize("n", [64, 65, 100, 4096, 4097, 9000])
def test_fractional_bits_follow_the_document(n: int, bits: float, unbiased: bool) -> None:
    x = np.random.default_rng(n).laplace(size=n).astype(f32)
    codec = get_codec(f"eden(bits={bits},unbiased={str(unbiased).lower()})")
    frame = codec.encode(x, seed=n, step=2)
    rotation = Rotation(n, inspect(frame).stream)
    rotated = rotation.forward(x)
    scales = frame[32 : 32 + 4 * len(rotation.groups)].view(f32)
    decoded = np.empty_like(x)
    sent_bits = 0
    for scale, (begin, end) in zip(scales, rotation.groups, strict=True):
        chosen = chosen_of_group(bits % 1, begin, end - begin, rotation.stream)
        sent_bits += (end - begin) * int(bits) + int(chosen.sum())
        wanted, q = mixed(rotated[begin:end].astype(np.float64), chosen, bits, unbiased)
        assert scale == pytest.approx(wanted, rel=1e-5)
        decoded[begin:end] = scale * q.astype(f32)
    error = codec.decode(frame) - rotation.inverse(decoded)
    assert np.abs(error).max() < 1e-6 * np.abs(decoded).max()
    assert frame.size == pytest.approx(36 + scales.nbytes + 4 * (bits > 1) + sent_bits / 8, abs=2)


def test_fractional_bits_of_the_reference_implementation() -> None:
    """The formulas of the last test, for the elements that the reference chose."""
    meta, data = reference("eden-02")
    chosen = data["mask_high.2.5"].astype(bool)
    rotated = data["rotated.2.5"].astype(np.float64)
    scale, q = mixed(rotated, chosen, 2.5, unbiased=True)
    assert scale == pytest.approx(float(data["scale.2.5"][0]), rel=meta["tolerance"]["rtol"])
    np.testing.assert_array_equal(q[chosen], eden_values(3)[data["assignment_high.2.5"]])
    np.testing.assert_array_equal(q[~chosen], eden_values(2)[data["assignment_low.2.5"]])
    single = [
        vnmse(data["x"], roundtrip("eden(bits=2.5)", data["x"], step=step)) for step in range(20)
    ]
    assert np.mean(single) == pytest.approx(0.0824, rel=0.05)
    assert vnmse(rotated, scale * q) == pytest.approx(0.0824, rel=0.05)


@pytest.mark.parametrize("bits", [0.25, 0.5, 1.75])
def test_all_elements_are_chosen_equally_often(bits: float) -> None:
    n, draws = 100, 4000
    share = bits % 1
    counts = sum(chosen_of_group(share, 0, n, stream).astype(int) for stream in range(draws))
    assert np.abs(counts - draws * share).max() < 4.5 * np.sqrt(draws * share * (1 - share))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("eden(bits=7.5)", "bits above 7 are 8"),
        ("eden(bits=ramp(from=8,to=1,steps=10))", "bits above 7 are 8, without a schedule"),
        ("eden(bits=0)", r"a number in \(0, 8\]"),
        ("residual|eden(bits=0.5)", "error feedback diverges below 1 bit"),
        ("residual|eden(bits=steps([2,0.5]))", "error feedback diverges below 1 bit"),
    ],
)
def test_refused_bits(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(spec)


def test_whole_bits_keep_their_spec() -> None:
    assert get_codec("eden(bits=2.0)").spec == "eden(bits=2,unbiased=true)"


def draw(distribution: str, rng: np.random.Generator, n: int) -> FloatArray:
    x = rng.standard_normal(n)
    return (x if distribution == "normal" else rng.choice([-1, 1], n) * np.exp(x)).astype(f32)


@pytest.mark.parametrize(
    ("case", "row"),
    [("eden-vnmse-01", i) for i in range(4)]
    + [("eden-vnmse-02", i) for i in range(4)]
    + [("drive-vnmse-01", i) for i in range(4)],
)
def test_the_error_is_that_of_the_reference(case: str, row: int) -> None:
    meta, _ = reference(case)
    figures = meta["table"][row]
    drive = {"drive": "drive", "drive_plus": "drive(two_means=true)"}
    spec = drive.get(figures["bits"]) or f"eden(bits={figures['bits']})"
    codec = get_codec(spec)
    rng = np.random.default_rng(row)
    n, clients = meta["config"]["d"], figures["clients"]
    single, mean = [], []
    for trial in range(6):
        xs = [draw(figures["distribution"], rng, n) for _ in range(clients)]
        ys = [codec.decode(codec.encode(x, seed=i, step=trial)) for i, x in enumerate(xs)]
        squares = [np.sum(x.astype(float) ** 2) for x in xs]
        single += [vnmse(x, y) for x, y in zip(xs, ys, strict=True)]
        error = np.mean(xs, axis=0, dtype=float) - np.mean(ys, axis=0, dtype=float)
        mean.append(error @ error / np.mean(squares))
    tolerance = max(0.02 * figures["vnmse_mean"], 4 * figures["standard_error"])
    assert np.mean(single) == pytest.approx(figures["vnmse_mean"], abs=tolerance)
    assert np.mean(mean) == pytest.approx(figures["nmse_of_mean"], rel=0.1)


# Errors, bias and non-finite elements -------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("eden(bits=1,unbiased=false)", 0.3634),
        ("eden(bits=2,unbiased=false)", 0.1175),
        ("eden(bits=4,unbiased=false)", 0.0095),
        ("eden(bits=8)", 4.1e-5),
        ("eden(bits=0.5)", 2.14),
        ("eden(bits=0.5,unbiased=false)", 0.682),
        ("eden(bits=1.5)", 0.317),
        ("eden(bits=2.5)", 0.0824),
        ("eden(bits=2.5,unbiased=false)", 0.0761),
        ("drive(unbiased=false)", 0.3634),
        ("drive(two_means=true,unbiased=false)", 0.3634),
        ("rotate|uniform(bits=2)", 0.1188),
        ("rotate|uniform(bits=4)", 0.01154),
        ("rotate|uniform(bits=2,rounding=stochastic)", 0.1766),
        ("rotate|uniform(bits=4,rounding=stochastic)", 0.01994),
    ],
)
@pytest.mark.parametrize("distribution", ["normal", "lognormal"])
def test_the_error_is_that_of_a_normal_source(
    spec: str, expected: float, distribution: str
) -> None:
    x = draw(distribution, np.random.default_rng(3), 300_001)
    assert vnmse(x, roundtrip(spec, x)) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("spec", "distribution"),
    [
        ("eden(bits=1)", "normal"),
        ("eden(bits=2)", "normal"),
        ("eden(bits=2)", "lognormal"),
        ("eden(bits=0.5)", "normal"),
        ("eden(bits=0.1)", "lognormal"),
        ("eden(bits=1.5)", "normal"),
        ("drive", "normal"),
        ("drive", "lognormal"),
        ("drive(two_means=true)", "normal"),
        ("drive(two_means=true)", "lognormal"),
        ("uniform(bits=1,rounding=stochastic)", "normal"),
        ("uniform(bits=3,rounding=stochastic)", "lognormal"),
    ],
)
def test_the_mean_is_right(spec: str, distribution: str) -> None:
    n, draws = 1024 if "two_means" in spec else 1000, 600
    x = draw(distribution, np.random.default_rng(4), n)
    codec = get_codec(spec)
    ys = np.array(
        [
            codec.decode_payload(codec.encode_payload(x, step=step), n, step=step)
            for step in range(draws)
        ],
        np.float64,
    )
    deviation = ys.std(axis=0, ddof=1) / np.sqrt(draws)
    error = ys.mean(axis=0) - x
    if "two_means" in spec:  # x[0] is the mean of the rotated block, times its root
        assert ys.mean(axis=0)[0] == pytest.approx(np.pi / 2 * x[0], rel=0.2)
        error[0] = 0
    assert np.sum(error**2) < 1.2 * np.sum(deviation**2)
    # A Hadamard rotation is not uniform: it leaves elements that stand out of their block a bias.
    if distribution == "normal" or "uniform" in spec:
        # The floor is for elements near a level, which rarely take the other one.
        assert (np.abs(error) <= 5 * np.maximum(deviation, 0.3 * np.median(deviation))).all()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_uniform_is_within_half_a_step(bits: int) -> None:
    x = np.random.default_rng(bits).standard_cauchy(3000).astype(f32)
    codec = get_codec(f"uniform(bits={bits})")
    y = codec.decode(codec.encode(x))
    for begin in range(0, x.size, 512):
        group, sent = x[begin : begin + 512], y[begin : begin + 512]
        most = np.abs(group).max()
        assert np.abs(sent).max() <= most
        assert np.abs(group - sent).max() <= most / (2**bits - 1) * (1 + 1e-5)


def test_rotation_helps_with_heavy_tails() -> None:
    x = draw("lognormal", np.random.default_rng(5), 100_000)
    plain, rotated = (
        vnmse(x, roundtrip(spec, x)) for spec in ("uniform(bits=4)", "rotate|uniform(bits=4)")
    )
    assert rotated < 0.2 * plain


@pytest.mark.parametrize(
    "spec",
    [
        "eden(bits=2)",
        "eden(bits=0.5)",
        "eden(bits=1.5)",
        "drive",
        "drive(two_means=true)",
        "rotate|uniform(bits=2)",
    ],
)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_not_finite_shows_in_its_block(spec: str, bad: float) -> None:
    x = np.random.default_rng(6).standard_normal(12300).astype(f32)
    codec = get_codec(spec)
    x[5000:5010] = bad
    inside = np.zeros(x.size, bool)
    inside[4096:8192] = True
    assert np.array_equal(np.isnan(codec.decode(codec.encode(x))), inside)
    # The last whole block and the elements beyond it share one more block.
    x[5000:5010] = 0
    x[12299] = bad
    inside = np.arange(x.size) >= 8192
    assert np.array_equal(np.isnan(codec.decode(codec.encode(x))), inside)


def test_what_is_not_finite_shows_in_its_group() -> None:
    x = np.ones(1500, f32)
    x[600] = np.nan
    decoded = roundtrip("uniform", x)
    assert np.array_equal(np.isnan(decoded), np.arange(1500) // 512 == 1)


@pytest.mark.parametrize(
    "spec",
    [
        *ROTATED,
        *FRACTIONAL,
        "drive(two_means=true)",
        "uniform",
        "uniform(bits=1,rounding=stochastic)",
    ],
)
def test_zeros_stay_zeros(spec: str) -> None:
    codec = get_codec(spec)
    for n in (1, 64, 5000):
        assert not codec.decode(codec.encode(np.zeros(n, f32))).any()
        assert np.isfinite(codec.decode(codec.encode(np.full(n, 1e-44, f32)))).all()


@pytest.mark.parametrize("spec", ["eden(bits=1)", "drive", "drive(two_means=true)"])
def test_tiny_tensors_travel_as_they_are(spec: str) -> None:
    codec = get_codec(spec)
    x = np.random.default_rng(7).standard_normal(63).astype(f32)
    assert codec.decode(codec.encode(x)).tobytes() == x.tobytes()
    assert codec.encode(x[:0]).size == 36


def test_hostile_scales_decode_to_nan_and_wrong_sizes_are_refused() -> None:
    for spec in ("eden(bits=1)", "eden(bits=0.5)", "eden(bits=1.5)", "drive(two_means=true)"):
        check_hostile_scales(spec, 200)
        check_wrong_sizes(spec, 200, [-1, 5])
    codec = get_codec("eden(bits=1.5)")
    payload = codec.encode_payload(np.ones(200, f32))
    for size in (0, 11, 14, 2**31, 2**32 - 1):
        wrong = payload.copy()
        wrong[8:12] = np.array([size], np.uint32).view(np.uint8)
        check_refused(codec, wrong, 200)


def test_only_codecs_that_it_helps_follow_rotate() -> None:
    assert get_codec("rotate | uniform(bits=2)").spec == "rotate|uniform(bits=2,rounding=nearest)"
    for spec in ("rotate", "rotate|eden", "rotate|topk(k=1)", "uniform|rotate"):
        with pytest.raises(SpecError):
            get_codec(spec)
