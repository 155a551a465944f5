"""dither: its definition by the document and by BytePS, unbiasedness, and extreme elements."""

from __future__ import annotations

import numpy as np
import pytest

import gradcomp
from support.levels_model import check_payload, dequantize, quantize
from support.reference import reference
from support.streams import words_of_draws

CALL = {"seed": 1, "step": 2, "tensor_id": 3}


def gradients(n: int) -> np.ndarray:
    x = np.random.default_rng(n).normal(size=n) * np.exp(np.random.default_rng(1).normal(size=n))
    x[::29] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("coder", ["packed", "rans", "elias_delta"])
@pytest.mark.parametrize("partition", ["linear", "natural"])
@pytest.mark.parametrize("normalize", ["max", "l2"])
@pytest.mark.parametrize(("levels", "bucket"), [(4, 1_024_000), (1, 100), (30, 777), (127, 5000)])
def test_the_payload_is_what_the_document_says(
    levels: int, bucket: int, normalize: str, partition: str, coder: str
) -> None:
    spec = (
        f"dither(levels={levels},bucket={bucket},normalize={normalize},partition={partition})"
        f"|{coder}"
    )
    check_payload(spec, gradients(10_000), levels, bucket, normalize, partition, **CALL)


def xorshift128plus(seed: int, count: int) -> np.ndarray:
    a = b = seed
    mask = 2**64 - 1
    draws = []
    for _ in range(count):
        t, s = a, b
        a = s
        t = (t ^ t << 23) & mask
        t ^= t >> 17
        t ^= s ^ s >> 26
        b = t
        draws.append((t + s) & mask)
    return np.array(draws, np.uint64)


@pytest.mark.parametrize("case", [1, 2, 3, 4])
def test_the_definition_equals_byteps(case: int) -> None:
    about, arrays = reference(f"byteps-dithering-0{case}")
    kwargs = about["config"]["kwargs_worker"]
    levels = kwargs["compressor_k"]
    partition = ["linear", "natural"][kwargs["dithering_partition"]]
    normalize = ["max", "l2"][kwargs["dithering_normalize"]]
    steps, workers, n = arrays["grad"].shape
    # Every worker draws once per element, on and on from the same seed.
    raw = xorshift128plus(kwargs["seed"], steps * n)
    np.testing.assert_array_equal(raw[:64], arrays["rng_raw"])
    draws = raw.astype(np.float64) * 2.0**-64
    for step in range(steps):
        words = words_of_draws(draws[step * n : (step + 1) * n])
        for worker in range(workers):
            x = arrays["grad"][step, worker]
            norms, signed = quantize(x, words, levels, n, normalize, partition)
            decoded = dequantize(norms, signed, levels, n, partition)
            expected = arrays["decoded"][step, worker]
            np.testing.assert_allclose(decoded, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("partition", ["linear", "natural"])
@pytest.mark.parametrize("normalize", ["max", "l2"])
@pytest.mark.parametrize("levels", [1, 4, 9])
def test_the_mean_over_many_streams_is_the_input(
    levels: int, partition: str, normalize: str
) -> None:
    codec = gradcomp.get_codec(
        f"dither(levels={levels},partition={partition},normalize={normalize})"
    )
    x = gradients(500)
    rounds = 2000
    decoded = np.array([codec.decode(codec.encode(x, seed=i)) for i in range(rounds)], np.float64)
    deviation = decoded.std(axis=0) / np.sqrt(rounds)
    norm = abs(x).max() if normalize == "max" else np.linalg.norm(x)
    # Where a rare level was never drawn, the deviation seen says nothing.
    step = norm / levels if partition == "linear" else norm * 2.0 ** (1 - levels)
    rare = np.sqrt(step * abs(x) / rounds)
    assert (abs(decoded.mean(axis=0) - x) <= 5 * np.maximum(deviation, rare) + 1e-6 * norm).all()


def test_natural_levels_are_powers_of_two_next_to_the_value() -> None:
    codec = gradcomp.get_codec("dither(levels=8,partition=natural)")
    x = gradients(5000)
    decoded = codec.decode(codec.encode(x, seed=3))
    ratio = abs(decoded[decoded != 0] / abs(x).max())
    assert set(np.log2(ratio)) == set(range(-7, 1))
    kept = (decoded != 0) & (abs(x) >= abs(x).max() * 2.0**-7)
    assert (abs(decoded[kept] / x[kept]) < 2.00001).all()
    assert (abs(decoded[kept] / x[kept]) > 0.49999).all()
    assert (decoded[abs(x) > abs(x).max() * 2.0**-6] != 0).all()


def test_levels_are_kept_whatever_the_draws() -> None:
    powers = np.float32(2.0) ** -np.arange(0, 100, dtype=np.float32)
    x = np.concatenate([powers, -powers, np.zeros(3, np.float32)])
    codec = gradcomp.get_codec("dither(levels=100,partition=natural)")
    for seed in range(20):
        assert codec.decode(codec.encode(x, seed=seed)).tobytes() == x.tobytes()


@pytest.mark.parametrize("partition", ["linear", "natural"])
def test_bad_elements_show_and_extremes_stay_finite(partition: str) -> None:
    codec = gradcomp.get_codec(f"dither(levels=100,partition={partition},bucket=50)")
    x = gradients(150)
    x[70] = np.inf
    assert np.isnan(codec.decode(codec.encode(x))).tolist() == [50 <= i < 100 for i in range(150)]
    huge = np.full(50, -np.finfo(np.float32).max, np.float32)
    np.testing.assert_allclose(codec.decode(codec.encode(huge)), huge, rtol=1e-6)
    assert codec.decode(codec.encode(np.full(50, -1e-40, np.float32))).tobytes() == bytes(200)
