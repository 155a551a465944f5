"""gradcomp.polar: the reference data, the laws of polar codes, hostile arguments."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcomp import _core
from gradcomp.errors import WireError
from gradcomp.polar import (
    PolarCode,
    PolarLossy,
    PolarLossyArray,
    bit_reversal,
    distortion_rate,
    polar_transform,
    rate_distortion,
)
from support.reference import reference

CONSTRUCTIONS = ["bec", "bhattacharyya", "ga", "mc"]
Arrays = dict[str, npt.NDArray[Any]]

SHAPES = [
    (1, 0),
    (1, 1),
    (2, 1),
    (3, 2),
    (8, 4),
    (50, 25),
    (64, 64),
    (100, 0),
    (127, 90),
    (512, 100),
]


def bits(*shape: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 2, shape, np.uint8)


def make(n: int, k: int, construction: str = "bec") -> PolarCode:
    return PolarCode(n, k, construction, trials=20)


def matrix(n: int) -> npt.NDArray[np.uint8]:
    g = np.ones((1, 1), np.uint8)
    while len(g) < n:
        g = np.kron(np.array([[1, 0], [1, 1]], np.uint8), g)
    return g


def path_metric(codeword: npt.NDArray[np.uint8], llr: npt.NDArray[np.float64]) -> float:
    """-ln of the probability of a codeword, bit by bit."""
    return float(np.logaddexp(0, -(1.0 - 2.0 * codeword) * llr).sum())


# Reference data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["polar-transform-01", "polar-transform-02"])
def test_the_transform_is_the_reference_one(case: str) -> None:
    description, arrays = reference(case)
    for n in description["config"]["N"]:
        u, x = arrays[f"u.{n}"], arrays[f"x.{n}"]
        assert np.array_equal(polar_transform(u), x)
        assert np.array_equal(bit_reversal(n), arrays[f"bit_reversal.{n}"])
        assert np.array_equal(polar_transform(u)[:, bit_reversal(n)], arrays[f"x_bitreversed.{n}"])
        assert np.array_equal(PolarCode(n, n).encode(u), x)
        if f"F.{n}" in arrays:
            # Its columns are the transforms of unit vectors.
            assert np.array_equal(polar_transform(np.eye(n, dtype=np.uint8)).T, arrays[f"F.{n}"])


@pytest.mark.parametrize("case", ["polar-frozen-01", "polar-frozen-02"])
def test_bhattacharyya_sets_are_the_reference_ones(case: str) -> None:
    description, arrays = reference(case)
    names = [key[2:] for key in arrays if key.startswith("z.")]
    assert len(names) >= 3
    for name in names:
        n, k = map(int, name.split("."))
        code = PolarCode(n, k, "bhattacharyya", description["config"]["design_snr_db"])
        np.testing.assert_allclose(code.reliability, arrays[f"z.{name}"], rtol=1e-9, atol=1e-9)
        assert np.array_equal(code.info_mask, arrays[f"info_mask.{name}"])
        # Where the reference's own digits leave no tie, its order as well.
        z = arrays[f"z.{name}"][arrays[f"frozen.{name}"]]
        assert set(code.frozen) == set(arrays[f"frozen.{name}"])
        np.testing.assert_allclose(code.reliability[code.frozen], z, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", ["polar-sc-01", "polar-sc-02", "polar-shorten-01"])
def test_randomised_compression_is_the_reference_one(case: str) -> None:
    description, arrays = reference(case)
    config = description["config"]
    lossy = PolarLossy(config["N"], config["K"], "bhattacharyya", config["snr_db"], channel="snr")
    assert lossy.code.mother_N == config["mother_N"]
    assert np.array_equal(lossy.code.info_mask, arrays["info_mask"])
    if "punct_mask" in arrays:
        assert np.array_equal(lossy.code.kept, np.flatnonzero(arrays["punct_mask"]))
    order = bit_reversal(lossy.code.mother_N)
    order = order[lossy.code.info_mask[order] == 1]
    assert np.array_equal(order, arrays["decision_order"])
    payload = lossy.compress(arrays["message"], rounding="random", uniforms=arrays["uniform"])
    assert np.array_equal(payload, arrays["payload"])
    assert np.array_equal(lossy.decompress(payload), arrays["reconstruction"])
    wrong = (lossy.decompress(payload) != arrays["message"]).mean(axis=1)
    assert wrong == pytest.approx(description["hamming_distortion_per_message"])
    _, seen = lossy.code._core.compress(
        arrays["message"], lossy.llr, lossy.llr, False, None, arrays["uniform"], trace=True
    )
    assert np.abs(arrays["channel_llr"]) == pytest.approx(lossy.llr)
    np.testing.assert_allclose(seen, arrays["llr"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", ["polar-scdecode-01", "polar-scdecode-02"])
def test_successive_cancellation_is_the_reference_one(case: str) -> None:
    description, arrays = reference(case)
    config = description["config"]
    code = PolarCode(config["N"], config["K"], "bhattacharyya", config["design_snr_db"])
    assert np.array_equal(code.info_mask, arrays["info_mask"])
    assert np.array_equal(code.encode(arrays["message"]), arrays["codeword"])
    assert np.array_equal(code.decode(arrays["channel_llr"]), arrays["message_hat"])
    assert np.array_equal(arrays["u_hat"][:, code.information], arrays["message_hat"])


@pytest.mark.parametrize("case", ["polar-distortion-01", "polar-distortion-02"])
def test_distortions_are_the_reference_ones(case: str) -> None:
    description, arrays = reference(case)
    for row in description["table"]:
        name, n, k = row["rate"], description["config"]["N"], row["K"]
        snr_db = description["config"]["snr_db"]
        lossy = PolarLossy(n, k, "bhattacharyya", snr_db, channel="snr")
        source = np.unpackbits(arrays[f"message.{name}"], axis=1)
        info_mask = np.unpackbits(arrays[f"info_mask.{name}"])
        assert np.array_equal(lossy.code.info_mask, info_mask)
        uniforms = arrays[f"uniform.{name}"]
        payload = lossy.compress(source, rounding="random", uniforms=uniforms)
        assert np.array_equal(np.packbits(payload, axis=1), arrays[f"payload.{name}"])
        wrong = (lossy.decompress(payload) != source).mean(axis=1)
        assert np.array_equal(wrong, arrays[f"distortion.{name}"])
        assert distortion_rate(row["rate"]) == pytest.approx(row["shannon_distortion"], abs=1e-9)
        # With draws of our own: as likely as the reference's.
        trials = 400
        mean = lossy.distortion(bits(trials, n, seed=1), rounding="random", seed=1)
        error = row["standard_error"] * math.sqrt(1 + row["trials"] / trials)
        assert abs(mean - row["mean_distortion"]) < 4 * error


def test_the_pipeline_for_arrays_is_the_reference_one() -> None:
    description, arrays = reference("polar-final-01")
    config = description["config"]
    lossy = PolarLossyArray(
        arrays["x"].size,
        config["quantised_dtype"],
        [config["compress_rate"]],
        scale=config["scale"],
        construction="bhattacharyya",
        design_snr_db=config["snr_db"],
        channel="snr",
    )
    payload = lossy.compress(arrays["x"], rounding="random", uniforms=[arrays["uniform"]])
    assert np.array_equal(payload.view("<u4"), arrays["payload_words"])
    y = lossy.decompress(payload).reshape(arrays["x"].shape)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, arrays["y"], rtol=0, atol=1e-7)
    source = np.unpackbits(arrays["quantised"].reshape(-1).view(np.uint8), bitorder="little")
    assert np.array_equal(source, arrays["source_bits"])


# Laws ---------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(log2=st.integers(0, 12), rows=st.integers(0, 3), seed=st.integers(0, 2**32 - 1))
def test_the_transform_is_an_involution(log2: int, rows: int, seed: int) -> None:
    u = bits(rows, 2**log2, seed=seed)
    before = u.copy()
    x = polar_transform(u)
    assert np.array_equal(u, before)
    assert np.array_equal(polar_transform(x), u)
    if log2 <= 8:
        assert np.array_equal(x, u.astype(int) @ matrix(2**log2) % 2)


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_codes_are_sound(n: int, k: int, construction: str) -> None:
    code = make(n, k, construction)
    mother = code.mother_N
    assert mother == 2 ** math.ceil(math.log2(n))
    assert (len(code.information), len(code.kept)) == (k, n)
    assert np.array_equal(np.sort(np.append(code.information, code.frozen)), np.arange(mother))
    assert set(code.information) <= set(code.kept)
    assert np.array_equal(code.kept, np.sort(bit_reversal(mother)[:n]))
    message = bits(5, k, seed=n)
    for systematic in (False, True):
        codeword = code.encode(message, systematic=systematic)
        # Frozen inputs are 0, and so are shortened outputs.
        outputs = np.zeros((5, mother), np.uint8)
        outputs[:, code.kept] = codeword
        inputs = polar_transform(outputs)
        assert not inputs[:, code.frozen].any()
        carrier = outputs if systematic else inputs
        assert np.array_equal(carrier[:, code.information], message)
        # Without noise everything comes back; infinite LLRs are allowed.
        llr = np.where(codeword == 0, 1.5, -2.5)
        for received in (llr, llr.astype(np.float32), llr * np.inf):
            for list_size in (1, 4):
                for min_sum in (False, True):
                    options = {"list_size": list_size, "min_sum": min_sum}
                    decoded = code.decode(received, systematic=systematic, **options)
                    assert np.array_equal(decoded, message)


def test_systematic_codewords_need_no_special_set() -> None:
    # A single trial makes a set that is no up-set of the order of bit channels.
    code = PolarCode(32, 12, "mc", -10.0, trials=1)
    message = bits(20, 12)
    codeword = code.encode(message, systematic=True)
    assert np.array_equal(codeword[:, code.information], message)
    assert not polar_transform(codeword)[:, code.frozen].any()
    twice = np.zeros((20, 32), np.uint8)
    twice[:, code.information] = message
    twice = polar_transform(twice)
    twice[:, code.frozen] = 0
    assert not np.array_equal(polar_transform(twice), codeword), "the set is an ordinary one"


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("min_sum", [False, True])
def test_a_list_of_one_is_successive_cancellation(n: int, k: int, min_sum: bool) -> None:
    code = make(n, k)
    llr = np.random.default_rng(n).normal(0.5, 2, (40, n))
    llr[::2] = np.sign(llr[::2])  # many ties
    found, metrics = code.decode_list(llr, 1, min_sum=min_sum)
    assert found.shape == (40, 1, k)
    assert metrics.shape == (40, 1)
    assert np.array_equal(found[:, 0], code.decode(llr, min_sum=min_sum))


@pytest.mark.parametrize(("n", "k"), [(8, 4), (11, 3), (16, 6), (32, 5)])
def test_a_list_of_all_messages_is_maximum_likelihood(n: int, k: int) -> None:
    code = make(n, k)
    messages = (np.arange(2**k)[:, None] >> np.arange(k) & 1).astype(np.uint8)
    codewords = code.encode(messages)
    llr = np.random.default_rng(n).normal(0.5, 2, (10, n))
    found, metrics = code.decode_list(llr, 64)
    assert found.shape == (10, 2**k, k)
    assert (np.diff(metrics, axis=1) >= 0).all()
    for row in range(10):
        exact = np.array([path_metric(c, llr[row]) for c in codewords])
        index = found[row] @ (1 << np.arange(k))
        assert np.array_equal(np.sort(index), np.arange(2**k))
        # Shortened bits are certain and cost nothing.
        np.testing.assert_allclose(metrics[row], exact[index], rtol=1e-9, atol=1e-9)
        systematic, same = code.decode_list(llr[row], 64, systematic=True)
        assert np.array_equal(same, metrics[row])
        again = code.encode(systematic, systematic=True)
        assert np.array_equal(again, codewords[index])


def test_longer_lists_find_better_paths() -> None:
    code = make(256, 128)
    llr = np.random.default_rng(3).normal(2.8, math.sqrt(5.6), (60, 256))
    best = [code.decode_list(llr, size)[1][:, 0].mean() for size in (1, 2, 8, 32)]
    assert best == sorted(best, reverse=True)
    assert best[-1] < best[0] - 1
    wrong = [code.decode(llr, list_size=size).any(axis=1).mean() for size in (1, 32)]
    assert wrong[1] < wrong[0]


def test_exact_decisions_are_posteriors() -> None:
    """The LLR of each decision, against the sum over all words."""
    n = 8
    code = PolarCode(n, n)
    llr = np.random.default_rng(1).normal(0, 1.5, n)
    _, seen = code._core.decode(llr[None], False, False, trace=True)
    words = (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(np.uint8)
    likelihood = np.exp([-path_metric(word, llr) for word in polar_transform(words)])
    decided = code.decode(llr)
    possible = np.ones(2**n, bool)
    for index in bit_reversal(n):
        one = words[:, index] == 1
        expected = math.log(likelihood[possible & ~one].sum() / likelihood[possible & one].sum())
        assert seen[0, index] == pytest.approx(expected, rel=1e-9)
        assert decided[index] == (expected < 0)
        possible &= one == decided[index]


def test_erasure_probabilities_are_exact() -> None:
    for n, k in [(16, 5), (64, 48), (12, 7)]:
        code = PolarCode(n, k)
        z = np.zeros(code.mother_N)
        z[code.kept] = 1 - k / n
        half = 1
        while half < len(z):
            for i in range(len(z)):
                if not i & half:
                    a, b = z[i], z[i + half]
                    z[i], z[i + half] = a + b - a * b, a * b
            half *= 2
        np.testing.assert_allclose(code.reliability, z, rtol=1e-12, atol=1e-17)
        assert z[code.information].max(initial=0) <= z[np.intersect1d(code.frozen, code.kept)].min()


def test_constructions_for_the_same_channel_agree() -> None:
    for n, k in [(128, 64), (200, 60)]:
        exact = PolarCode(n, k, "mc", 1.0, trials=4000)
        for construction in ("bhattacharyya", "ga"):
            other = PolarCode(n, k, construction, 1.0)
            assert (exact.info_mask & other.info_mask).sum() > 0.93 * k
        again = PolarCode(n, k, "mc", 1.0, trials=4000)
        assert np.array_equal(again.reliability, exact.reliability)
        other = PolarCode(n, k, "mc", 1.0, trials=4000, seed=1)
        assert not np.array_equal(other.reliability, exact.reliability)


def test_the_gaussian_approximation_is_monotonic() -> None:
    """A better channel has better bit channels, through all pieces of the approximation."""
    before = np.zeros(64)
    for snr_db in np.linspace(-30, 20, 201):
        after = PolarCode(64, 32, "ga", snr_db).reliability
        assert np.isfinite(after).all()
        assert (after >= before).all()
        before = after


@pytest.mark.parametrize("rounding", ["deterministic", "random"])
def test_distortion_falls_with_length_and_stays_above_the_bound(rounding: str) -> None:
    for rate in (0.25, 0.5, 0.75):
        found = []
        for n in (64, 512, 4096):
            lossy = PolarLossy(n, int(rate * n))
            found.append(lossy.distortion(bits(2**16 // n, n, seed=n), rounding=rounding))
        assert found == sorted(found, reverse=True)
        assert distortion_rate(rate) < found[-1] < distortion_rate(rate) + 0.035
        assert found[0] < 0.5 * (1 - rate)  # the cost of sending the bits themselves


def test_rounding_at_random_costs_distortion_and_is_seeded() -> None:
    source = bits(64, 1024)
    lossy = PolarLossy(1024, 512)
    random = lossy.compress(source, rounding="random", seed=5)
    assert np.array_equal(random, lossy.compress(source, rounding="random", seed=5))
    assert not np.array_equal(random, lossy.compress(source, rounding="random", seed=6))
    assert lossy.distortion(source) < lossy.distortion(source, rounding="random", seed=5)
    same = np.repeat(source[:1], 2, axis=0)
    first, second = lossy.compress(same, rounding="random")
    assert not np.array_equal(first, second), "rows draw the same numbers"


@pytest.mark.parametrize("n", [256, 300])
def test_lists_lower_distortion(n: int) -> None:
    source = bits(100, n)
    lossy = PolarLossy(n, n // 2)
    found = [lossy.distortion(source, list_size=size) for size in (1, 4, 32)]
    assert found == sorted(found, reverse=True)
    assert found[2] < found[0] - 0.005
    # With exact metrics the best path is the one with the fewest wrong bits.
    llr = np.where(source == 0, lossy.llr, -lossy.llr)
    messages, _ = lossy.code.decode_list(llr, 4)
    wrong = (lossy.decompress(messages) != source[:, None]).sum(axis=2)
    chosen = lossy.decompress(lossy.compress(source, list_size=4))
    assert np.array_equal((chosen != source).sum(axis=1), wrong.min(axis=1))


def test_shortened_positions_are_better_known_than_guessed() -> None:
    source = bits(200, 300)
    known, guessed = (
        PolarLossy(300, 150, channel=channel).distortion(source) for channel in ("bsc", "snr")
    )
    assert distortion_rate(0.5) < known < guessed


@pytest.mark.parametrize("rounding", ["deterministic", "random"])
@pytest.mark.parametrize("n", [1, 3, 64, 100])
def test_extreme_rates(n: int, rounding: str) -> None:
    source = bits(10, n)
    everything = PolarLossy(n, n)
    kept = everything.decompress(everything.compress(source, rounding=rounding))
    assert np.array_equal(kept, source)
    nothing = PolarLossy(n, 0)
    message = nothing.compress(source, rounding=rounding)
    assert message.shape == (10, 0)
    assert not nothing.decompress(message).any()


@pytest.mark.parametrize("min_sum", [False, True])
def test_neither_threads_nor_batches_change_results(min_sum: bool) -> None:
    code, lossy = make(100, 50), PolarLossy(100, 50, min_sum=min_sum)
    source = bits(7, 100)
    llr = np.random.default_rng(1).normal(0.5, 2, (7, 100))

    def results() -> list[npt.NDArray[Any]]:
        return [
            code.encode(source[:, :50]),
            code.decode(llr, min_sum=min_sum),
            *code.decode_list(llr, 4, min_sum=min_sum),
            lossy.compress(source),
            lossy.compress(source, rounding="random", seed=9),
        ]

    expected = results()
    for count in (2, 3, 16):
        _core.set_thread_count(count)
        for one, other in zip(results(), expected, strict=True):
            assert np.array_equal(one, other)
    for row in range(7):
        assert np.array_equal(code.decode(llr[row], min_sum=min_sum), expected[1][row])
        assert np.array_equal(lossy.compress(source[row]), expected[4][row])


def test_leading_dimensions_are_kept() -> None:
    code, lossy = make(12, 5), PolarLossy(12, 5)
    for lead in [(), (3,), (2, 3), (0,), (2, 0)]:
        source = bits(*lead, 12)
        assert code.encode(bits(*lead, 5)).shape == (*lead, 12)
        assert code.decode(source * 1.0).shape == (*lead, 5)
        found, metrics = code.decode_list(source * 1.0, 3)
        assert (found.shape, metrics.shape) == ((*lead, 3, 5), (*lead, 3))
        assert lossy.compress(source).shape == (*lead, 5)
        assert lossy.decompress(bits(*lead, 5)).shape == (*lead, 12)
        assert polar_transform(bits(*lead, 8)).shape == (*lead, 8)
    strided = bits(5, 24)[:, ::2]
    assert np.array_equal(lossy.compress(strided), lossy.compress(strided.copy()))
    assert np.array_equal(code.encode(bits(5) == 1), code.encode(bits(5)))


def test_rates_and_distortions_are_inverse() -> None:
    for rate in np.linspace(0, 1, 21):
        assert rate_distortion(distortion_rate(rate)) == pytest.approx(rate, abs=1e-12)
    assert (distortion_rate(0), distortion_rate(1)) == (0.5, 0)
    assert distortion_rate(0.5) == pytest.approx(0.110027864, abs=1e-9)


# Arrays of numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"]
)
def test_arrays_at_full_rate_come_back(dtype: str) -> None:
    x = (
        np.random.default_rng(0)
        .integers(0, 256, 33 * np.dtype(dtype).itemsize, np.uint8)
        .view(dtype)
    )
    for parts in (1, 2, 8):
        lossy = PolarLossyArray(33, dtype, [1.0] * parts)
        payload = lossy.compress(x)
        assert payload.size == lossy.payload_bytes == x.nbytes
        assert lossy.decompress(payload).tobytes() == x.tobytes()
        assert lossy.decompress(payload).dtype == dtype


def test_high_bits_may_have_higher_rates() -> None:
    x = (np.random.default_rng(0).normal(size=500) * 3000).astype(np.int16)
    lossy = PolarLossyArray(500, "int16", [0.25, 1.0])
    assert [part.K for part in lossy.parts] == [1000, 4000]
    y = lossy.decompress(lossy.compress(x))
    assert np.array_equal(y >> 8, x >> 8)
    assert not np.array_equal(y, x)
    even = PolarLossyArray(500, "int16", [0.625, 0.625])
    assert even.payload_bytes == lossy.payload_bytes
    worse = even.decompress(even.compress(x))
    assert np.square(y - x.astype(float)).sum() < 0.1 * np.square(worse - x.astype(float)).sum()


def test_floats_saturate() -> None:
    lossy = PolarLossyArray(5, "int16", [1.0], scale=1e5)
    x = np.array([0.1, -0.25, 7.0, -np.inf, 1e-6], np.float32)
    y = lossy.decompress(lossy.compress(x))
    assert y == pytest.approx([0.1, -0.25, 0.32767, -0.32768, 0], abs=1e-7)
    wide = PolarLossyArray(2, "int32", [1.0], scale=1e5)
    assert wide.decompress(wide.compress(np.array([np.inf, -np.inf]))) == pytest.approx(
        [21474.83647, -21474.83648]
    )


def test_parts_draw_numbers_of_their_own() -> None:
    x = bits(64).astype(np.int16) * 0x0101 + bits(64, seed=1).astype(np.int16) * 0x1010
    lossy = PolarLossyArray(64, "int16", [0.5, 0.5])
    payload = lossy.compress(x, rounding="random", seed=3)
    assert np.array_equal(payload, lossy.compress(x, rounding="random", seed=3))
    low, high = np.split(np.unpackbits(payload, bitorder="little"), 2)
    assert not np.array_equal(low, high)


# Hostile arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((0, 0), {}, ValueError, "N is 0; it must be from 1 to 1048576"),
        ((2**20 + 1, 0), {}, ValueError, "N is 1048577; it must be from 1 to 1048576"),
        ((-1, 0), {}, ValueError, "N is -1; it must not be negative"),
        ((2**70, 0), {}, ValueError, "N is 1180591620717411303424"),
        ((8, 9), {}, ValueError, "K is 9; it must be from 0 to N = 8"),
        ((8, -1), {}, ValueError, "K is -1"),
        ((8.0, 4), {}, TypeError, "N is 8.0; it must be an integer"),
        ((8, "4"), {}, TypeError, "K is '4'; it must be an integer"),
        ((8, 4, "5g"), {}, ValueError, "construction is '5g'; it must be 'bec'"),
        ((8, 4, None), {}, TypeError, "construction is None; it must be 'bec'"),
        ((8, 4, "ga", math.nan), {}, ValueError, "design_snr_db is nan; it must be from -50"),
        ((8, 4, "ga", 51), {}, ValueError, "design_snr_db is 51.0.*to 50"),
        ((8, 4, "ga", "5"), {}, TypeError, "design_snr_db is '5'; it must be a number"),
        ((8, 4, "mc"), {"trials": 0}, ValueError, "trials is 0; it must be from 1 to 1000000"),
        ((8, 4, "mc"), {"trials": 2**40}, ValueError, "trials is .*; it must be from 1 to"),
        ((8, 4, "mc"), {"seed": -1}, ValueError, "seed is -1; it must be from 0"),
        ((8, 4, "mc"), {"seed": 2**64}, ValueError, "seed is .*from 0 to 2.64 - 1"),
    ],
)
def test_codes_refuse(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    for make_one in (PolarCode, PolarLossy):
        with pytest.raises(error, match=message):
            make_one(*arguments, **options)


def test_arrays_are_checked() -> None:
    code, lossy = make(8, 4), PolarLossy(8, 4)
    with pytest.raises(TypeError, match=r"message has dtype int64; bits must be uint8 or bool"):
        code.encode([0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"element 5 is 2; bits must be 0 or 1"):
        code.encode(np.array([[0, 1, 0, 1], [1, 2, 0, 1]], np.uint8))
    with pytest.raises(ValueError, match=r"element 7 is 255; bits must be 0 or 1"):
        lossy.compress(np.array([0, 1, 0, 1, 0, 1, 0, 255], np.uint8))
    with pytest.raises(ValueError, match=r"message has shape \(5,\); its last dimension must be K"):
        lossy.decompress(bits(5))
    with pytest.raises(ValueError, match=r"bits has shape \(\); its last dimension must be N = 8"):
        lossy.compress(np.uint8(1))
    with pytest.raises(TypeError, match=r"llr has dtype float16; it must be float32 or float64"):
        code.decode(np.zeros(8, np.float16))
    with pytest.raises(ValueError, match=r"llr has shape \(9,\)"):
        code.decode(np.zeros(9))
    with pytest.raises(ValueError, match=r"LLR 3 is NaN; it must be a number"):
        code.decode(np.array([0, 1, 2, np.nan, 4, 5, 6, 7]))
    with pytest.raises(ValueError, match=r"LLR 0 is NaN"):
        code.decode_list(np.full(8, np.nan), 2)
    for size in (0, 65, 2**62):
        with pytest.raises(ValueError, match=f"list_size is {size}; it must be from 1 to 64"):
            code.decode_list(np.zeros(8), size)
        with pytest.raises(ValueError, match=f"list_size is {size}; it must be from 1 to 64"):
            code.decode(np.zeros(8), list_size=size)
    for rows in (bits(12), bits(0), np.uint8(1)):
        with pytest.raises(ValueError, match=r"it must be a power of two from 1 to 1048576"):
            polar_transform(rows)
    with pytest.raises(ValueError, match=r"N is 12; it must be a power of two"):
        bit_reversal(12)
    with pytest.raises(ValueError, match=r"distortion is 0.6; it must be from 0 to 0.5"):
        rate_distortion(0.6)
    with pytest.raises(ValueError, match=r"rate is nan; it must be from 0 to 1"):
        distortion_rate(math.nan)


def test_contradictions_do_not_break_the_decoders() -> None:
    """Certain code bits that no codeword has, at every position."""
    code = make(50, 20)
    llr = np.where(bits(30, 50) == 0, np.inf, -np.inf)
    for min_sum in (False, True):
        assert code.decode(llr, min_sum=min_sum).max() <= 1
        _, metrics = code.decode_list(llr, 8, min_sum=min_sum)
        assert np.isfinite(metrics).all()


def test_lossy_options_are_checked() -> None:
    lossy, source = PolarLossy(8, 4), bits(3, 8)
    with pytest.raises(ValueError, match=r"channel is 'awgn'; it must be 'bsc' or 'snr'"):
        PolarLossy(8, 4, channel="awgn")
    with pytest.raises(ValueError, match=r"rounding is 'up'; it must be 'deterministic' or"):
        lossy.compress(source, rounding="up")
    with pytest.raises(ValueError, match=r"rounding must then be 'random'"):
        lossy.compress(source, uniforms=np.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"uniforms have shape \(4,\); it must be \(3, 4\)"):
        lossy.compress(source, rounding="random", uniforms=np.zeros(4))
    for draw in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"uniforms hold a number outside of \[0, 1\], or NaN"):
            lossy.compress(source, rounding="random", uniforms=np.full((3, 4), draw))
    with pytest.raises(ValueError, match=r"seed is -1"):
        lossy.compress(source, rounding="random", seed=-1)
    with pytest.raises(
        ValueError, match=r"list_size is 2; with rounding 'random' and channel 'bsc'"
    ):
        lossy.compress(source, rounding="random", list_size=2)
    with pytest.raises(ValueError, match=r"list_size is 4; .* and channel 'snr' it must be 1"):
        PolarLossy(8, 4, channel="snr").compress(source, list_size=4)
    for size in (0, 65):
        with pytest.raises(ValueError, match=f"list_size is {size}; it must be from 1 to 64"):
            lossy.compress(source, list_size=size)
    with pytest.raises(ValueError, match=r"bits holds 7; bits must be 0 or 1"):
        lossy.compress(source + np.uint8(6), list_size=2)
    with pytest.raises(ValueError, match=r"bits is empty"):
        lossy.distortion(bits(0, 8))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"numel": 0}, ValueError, "numel is 0; it must be at least 1"),
        ({"dtype": "int64"}, TypeError, "dtype is int64; it must be one of int8"),
        ({"rates": []}, ValueError, "there are 0 rates; their number must divide the 16 bits"),
        ({"rates": [1, 1, 1]}, ValueError, "there are 3 rates"),
        ({"rates": [1.5]}, ValueError, "a rate is 1.5; it must be from 0 to 1"),
        ({"rates": [math.nan]}, ValueError, "a rate is nan"),
        ({"rates": ["x"]}, TypeError, "a rate is 'x'; it must be a number"),
        ({"scale": 0}, ValueError, "scale is 0; it must be positive and finite"),
        ({"scale": math.inf}, ValueError, "scale is inf"),
        ({"scale": 2.0, "dtype": "float32"}, ValueError, "it needs an integer dtype"),
        ({"numel": 10**6}, ValueError, "N is 8000000; it must be from 1 to 1048576"),
    ],
)
def test_arrays_of_numbers_refuse(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        PolarLossyArray(**{"numel": 4, **arguments})


def test_numbers_and_payloads_are_checked() -> None:
    lossy = PolarLossyArray(4, "int16", scale=1e5)
    with pytest.raises(ValueError, match=r"x has 3 elements; it must have numel = 4"):
        lossy.compress(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match=r"x has dtype int64; it must hold floats"):
        lossy.compress(np.zeros(4, np.int64))
    with pytest.raises(ValueError, match=r"x holds NaN"):
        lossy.compress(np.full(4, np.nan))
    with pytest.raises(TypeError, match=r"x has dtype float64; it must be int16"):
        PolarLossyArray(4).compress(np.zeros(4))
    with pytest.raises(ValueError, match=r"uniforms are for 1 parts; there are 2"):
        lossy.compress(np.zeros(4), rounding="random", uniforms=[np.zeros(8)])
    with pytest.raises(WireError, match=r"the payload has 3 bytes; it must have 4"):
        lossy.decompress(np.zeros(3, np.uint8))
    with pytest.raises(TypeError, match=r"it must be flat uint8"):
        lossy.decompress(np.zeros(4))
    for pattern in (0, 255):  # any bytes decode
        assert np.isfinite(lossy.decompress(np.full(4, pattern, np.uint8))).all()


# The document -------------------------------------------------------------------------------------

DOCUMENT = (Path(__file__).parents[2] / "docs" / "polar.md").read_text()


def test_the_documents_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example, output = re.findall(r"```(?:python)?\n(.*?)```", DOCUMENT, re.DOTALL)
    exec(compile(example, "docs/polar.md", "exec"), {})
    assert capsys.readouterr().out == output


@pytest.mark.parametrize(
    "public", [PolarCode, PolarLossy, PolarLossyArray], ids=lambda c: c.__name__
)
def test_the_document_names_every_parameter_and_default(public: type) -> None:
    def shown(value: Any) -> str:
        return f'"{value}"' if isinstance(value, str) else repr(value)

    methods = [(public.__name__, public)] + [
        (name, method) for name, method in vars(public).items() if not name.startswith("_")
    ]
    for name, callable_ in methods:
        parts, keyword = [], False
        for parameter in list(inspect.signature(callable_).parameters.values()):
            if parameter.name == "self":
                continue
            if parameter.kind == parameter.KEYWORD_ONLY and not keyword:
                parts.append("*")
                keyword = True
            if parameter.kind == parameter.VAR_KEYWORD:
                parts.append(f"**{parameter.name}")
            elif parameter.default is parameter.empty:
                parts.append(parameter.name)
            else:
                parts.append(f"{parameter.name}={shown(parameter.default)}")
        assert f"`{name}({', '.join(parts)})`" in " ".join(DOCUMENT.split())
