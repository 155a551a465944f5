"""adaq against a plain numpy reference, its contraction and its size."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradcomp
from support.codecs import magnitudes, roundtrip, same_bits, settings_of_the_core
from support.gradients import DISTRIBUTIONS, LAWS, any_bits, finite, sample


def adaq(x: np.ndarray, ratio: float) -> np.ndarray:
    return roundtrip(f"adaq(ratio={ratio})", x)


def largest(x: np.ndarray, sign: int, ratio: float) -> np.ndarray:
    """The indices that are kept of the elements with a sign bit; of equal ones the first."""
    bits = x.view(np.uint32)
    magnitude = magnitudes(x)
    of_sign = np.flatnonzero((bits >> 31 == sign) & (magnitude > 0))
    k = min(of_sign.size, max(1, math.floor(ratio * of_sign.size + 0.5)))
    return of_sign[np.argsort(-magnitude[of_sign], kind="stable")[:k]]


def reference(x: np.ndarray, ratio: float) -> np.ndarray:
    dense = np.zeros_like(x)
    parts = [largest(x, sign, ratio) for sign in (0, 1)]
    fault = not all(np.isfinite(x[part]).all() for part in parts)
    for part in parts:
        if part.size > 0:
            dense[part] = np.nan if fault else x[part].astype(np.float64).mean()
    return dense


@LAWS
@given(x=any_bits(), ratio=st.sampled_from([0.01, 0.1, 0.5, 1.0]))
def test_it_equals_the_reference(x: np.ndarray, ratio: float) -> None:
    # The reference sums in another order; both sums are in float64.
    np.testing.assert_allclose(adaq(x, ratio), reference(x, ratio), rtol=1e-6, atol=1e-45)


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [4097, 200_000])
def test_of_many_it_equals_the_reference(kind: str, n: int) -> None:
    x = sample(kind, n)
    for ratio in (1e-5, 0.01, 0.3):
        expected = reference(x, ratio)
        for setting in settings_of_the_core():
            decoded = adaq(x, ratio)
            np.testing.assert_allclose(decoded, expected, rtol=1e-6, atol=1e-45, err_msg=setting)


@pytest.mark.parametrize("positive", [0.0, 0.001, 0.999, 1.0])
def test_signs_of_very_different_numbers_and_scales(positive: float) -> None:
    # Guessing one threshold for both signs must not lose the smaller one.
    rng = np.random.default_rng(3)
    magnitude = np.abs(rng.normal(size=150_000)).astype(np.float32)
    above = rng.random(magnitude.size) < positive
    x = np.where(above, magnitude, np.float32(-1e-6) * magnitude)
    np.testing.assert_allclose(adaq(x, 0.02), reference(x, 0.02), rtol=1e-6)


def test_zeros_are_not_kept() -> None:
    x = np.array([0.0, -0.0, 0.0, 3.0, -0.0], np.float32)
    assert same_bits(adaq(x, 1.0), np.array([0, 0, 0, 3, 0], np.float32))
    zeros = np.zeros(1000, np.float32)
    codec = gradcomp.get_codec("adaq(ratio=0.5)")
    assert codec.encode_payload(zeros)[:4].view(np.uint32)[0] == 0
    assert same_bits(codec.decode(codec.encode(-zeros)), zeros)


@LAWS
@given(x=finite(2.0**60), ratio=st.sampled_from([0.05, 0.3, 1.0]))
def test_it_contracts_by_the_energy_of_the_means(x: np.ndarray, ratio: float) -> None:
    exact, decoded = x.astype(np.float64), adaq(x, ratio).astype(np.float64)
    energy = np.sum(exact**2)
    error = np.sum((exact - decoded) ** 2)
    # A mean is at a right angle to the deviations from it, up to its rounding to float32.
    assert error == pytest.approx(energy - np.sum(decoded**2), rel=1e-5, abs=1e-6 * energy)
    # The larger half of some numbers has at least its share of their energy.
    larger_sign = max(np.sum(x > 0), np.sum(x < 0), 1)
    assert error <= (1 - 1 / larger_sign) * energy * (1 + 1e-6)


def test_its_bits_beyond_indices_are_one_per_element_kept() -> None:
    x = sample("gaussian", 100_000)
    ours, topk = (gradcomp.get_codec(s) for s in ("adaq(ratio=0.01)", "topk(ratio=0.01)"))
    saved = topk.encode_payload(x).size - ours.encode_payload(x).size
    assert abs(saved - (4 * 1000 - 8 - 125)) < 20
