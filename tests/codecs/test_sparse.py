"""Top-k against a plain numpy reference, and the randomness of random-k."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gradcomp
from support.codecs import magnitudes, only, roundtrip, same_bits, settings_of_the_core
from support.gradients import DISTRIBUTIONS, LAWS, any_bits, finite, sample


def topk_reference(x: np.ndarray, k: int) -> np.ndarray:
    """The dense decode of the k elements of largest magnitude bits; of equal ones the first."""
    return only(x, np.argsort(-magnitudes(x), kind="stable")[:k])


def topk(x: np.ndarray, k: int) -> np.ndarray:
    return roundtrip(f"topk(k={k})", x)


@LAWS
@given(x=any_bits(), k=st.integers(1, 320))
def test_topk_equals_the_reference(x: np.ndarray, k: int) -> None:
    assert same_bits(topk(x, k), topk_reference(x, k))


few_values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, np.inf, -np.inf, np.nan, 1e-45])


@LAWS
@given(x=hnp.arrays(np.float32, st.integers(1, 300), elements=few_values), k=st.integers(1, 300))
def test_topk_of_equal_magnitudes_takes_the_first(x: np.ndarray, k: int) -> None:
    assert same_bits(topk(x, k), topk_reference(x, k))


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [4097, 65537, 200_000])
def test_topk_of_many_equals_the_reference(kind: str, n: int) -> None:
    x = sample(kind, n)
    for k in (1, 37, n // 100, n // 3, n - 1):
        expected = topk_reference(x, k)
        for setting in settings_of_the_core():
            assert same_bits(topk(x, k), expected), (k, setting)


@pytest.mark.parametrize("order", ["ascending", "descending", "saw", "all NaN"])
def test_topk_of_hard_orders_equals_the_reference(order: str) -> None:
    n = 150_000
    ramp = np.arange(1, n + 1, dtype=np.float32)
    x = {
        "ascending": ramp,
        "descending": ramp[::-1].copy(),
        "saw": ramp % 1000,
        "all NaN": np.full(n, -1, np.int32).view(np.float32),  # the largest magnitude bits
    }[order]
    for k in (1, 1000, 70_000):
        expected = topk_reference(x, k)
        for setting in settings_of_the_core():
            assert same_bits(topk(x, k), expected), (k, setting)


@LAWS
@given(x=finite(2.0**60), k=st.integers(1, 300))
def test_topk_is_a_contraction(x: np.ndarray, k: int) -> None:
    exact = x.astype(np.float64)
    error = np.sum((exact - topk(x, k)) ** 2)
    kept = min(k, x.size) / max(x.size, 1)
    bound = (1 - kept) * np.sum(exact**2)
    assert error <= bound * (1 + 1e-12)


def kept_by_randomk(n: int, k: int, step: int, **call: int) -> tuple[int, ...]:
    codec = gradcomp.get_codec(f"randomk(k={k})")
    dense = codec.decode(codec.encode(np.ones(n, np.float32), step=step, **call))
    return tuple(np.flatnonzero(dense).tolist())


@LAWS
@given(x=any_bits(), k=st.integers(1, 320), step=st.integers(0, 2**64 - 1))
def test_randomk_keeps_k_elements_as_they_are(x: np.ndarray, k: int, step: int) -> None:
    kept = list(kept_by_randomk(x.size, k, step))
    assert len(kept) == min(k, x.size)
    codec = gradcomp.get_codec(f"randomk(k={k})")
    expected = np.zeros_like(x)
    expected[kept] = x[kept]
    assert same_bits(codec.decode(codec.encode(x, step=step)), expected)
    assert same_bits(codec.encode_payload(x, step=step), x[kept])


def test_randomk_differs_by_seed_step_and_tensor() -> None:
    subsets = {
        kept_by_randomk(1000, 10, step, seed=seed, tensor_id=tensor_id)
        for seed, step, tensor_id in itertools.product(range(5), repeat=3)
    }
    assert len(subsets) == 5**3


# Chi-square: the seeds are fixed, so these either always pass or never. The bounds are the 0.999
# quantiles, which a uniform draw exceeds once in a thousand choices of seeds.


@pytest.mark.parametrize(("n", "k"), [(20, 5), (20, 15), (20, 1), (20, 10)])
def test_randomk_keeps_every_index_equally_often(n: int, k: int) -> None:
    trials = 4000
    counts = np.zeros(n)
    for step in range(trials):
        counts[list(kept_by_randomk(n, k, step, seed=42))] += 1
    share = k / n
    assert counts.sum() == trials * k
    # Counts of draws without replacement are correlated; (n - 1) / n accounts for it.
    variance = trials * share * (1 - share)
    statistic = np.sum((counts - trials * share) ** 2) / variance * (n - 1) / n
    assert statistic < 43.8, "chi-square with 19 degrees of freedom"


@pytest.mark.parametrize(("k", "possible", "bound"), [(2, 15, 36.1), (4, 9, 26.1)])
def test_randomk_draws_from_each_part_of_a_ring(k: int, possible: int, bound: float) -> None:
    n, trials = 6, 6000
    begins = [i * n // k for i in range(k + 1)]
    outcomes = Counter(
        tuple(sorted((place + turn) % n for place in places))
        for turn in range(n)
        for places in itertools.product(*itertools.starmap(range, itertools.pairwise(begins)))
    )
    subsets = Counter(
        kept_by_randomk(n, k, 0, seed=7, tensor_id=tensor_id) for tensor_id in range(trials)
    )
    assert len(outcomes) == possible
    assert subsets.keys() == outcomes.keys()
    scale = trials / outcomes.total()
    statistic = sum(
        (subsets[one] - scale * count) ** 2 / (scale * count) for one, count in outcomes.items()
    )
    assert statistic < bound, f"chi-square with {possible - 1} degrees of freedom"


def test_randomk_of_successive_steps_is_independent() -> None:
    n, k, trials = 1000, 100, 500
    kept = [set(kept_by_randomk(n, k, step)) for step in range(trials + 1)]
    shared = np.array([len(a & b) for a, b in itertools.pairwise(kept)])
    # Hypergeometric: mean k^2 / n = 10, variance 10 * 0.9 * 900 / 999.
    deviation = np.sqrt(10 * 0.9 * 900 / 999 / trials)
    assert abs(shared.mean() - 10) < 3.3 * deviation
