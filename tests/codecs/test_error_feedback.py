"""Error feedback: the residual keeps all that was not sent, for every registered codec."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcomp import Pipeline
from support.codecs import roundtrip, same_bits
from support.gradients import DISTRIBUTIONS, LAWS, finite, finite_of, sample, seeds, with_specials
from support.pipelines import config_of, residual_of, send
from support.specs import MEMORY_SPECS

HALF_MAX = 65504.0
BFLOAT_OVERFLOW = 511 / 512 * 2.0**128  # rounding to bfloat16 gives Inf from here on

# Up to which magnitude `sent + residual` is the corrected gradient without any rounding. A kept
# element is sent whole or not at all; a rounded one differs from what is sent by less than a factor
# of two, and then the difference is a float32 (Sterbenz). Saturation keeps that up to twice 65504.
EXACT_LIMIT = {
    "identity": 2.0**127,
    "lossless": 2.0**127,
    "fp16(overflow=inf)": HALF_MAX,
    "fp16(overflow=saturate)": 2 * HALF_MAX,
    "bf16": 2.0**127,
    "topk(ratio=0.03)": 2.0**127,
    "topk(k=3)": 2.0**127,
    "randomk(ratio=0.03)": 2.0**127,
    "randomk(k=3)": 2.0**127,
}


def pipeline_of(codec: str, memory: str = "residual") -> Pipeline:
    return Pipeline(config_of(f"{memory}|{codec}"))


def corrected_by(pipeline: Pipeline, grad: np.ndarray, beta: float, gamma: float) -> np.ndarray:
    """The corrected gradient of the pipeline's next step, computed here."""
    saved = pipeline.state_dict()["residual"].get("w", np.zeros(grad.size, np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.float32(beta) * saved + np.float32(gamma) * grad.reshape(-1)


def difference(corrected: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """The residual that the memory has to keep: rounded once, and 0 where it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        kept = corrected - sent
    return np.where(np.isfinite(kept), kept, np.float32(0))


@pytest.mark.parametrize("codec", MEMORY_SPECS)
def test_the_residual_is_the_corrected_gradient_less_what_was_sent(codec: str) -> None:
    wrong = []
    for kind in DISTRIBUTIONS:
        pipeline = pipeline_of(codec)
        for step in range(4):
            grad = sample(kind, 500)
            corrected = corrected_by(pipeline, grad, 1, 1)
            sent = send(pipeline, grad)
            if not np.array_equal(residual_of(pipeline), difference(corrected, sent)):
                wrong.append((kind, step))
    assert wrong == []


@pytest.mark.parametrize("codec", EXACT_LIMIT)
@LAWS
@given(n=st.integers(0, 50), seed=seeds)
def test_sent_plus_residual_is_the_corrected_gradient_exactly(
    codec: str, n: int, seed: int
) -> None:
    pipeline = pipeline_of(codec)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        # The corrected gradient of a later step may be as large as the sum of all of them.
        grad = finite_of(rng, n, EXACT_LIMIT[codec] / 4)
        corrected = corrected_by(pipeline, grad, 1, 1)
        sent = send(pipeline, grad)
        residual = residual_of(pipeline)
        # Equal as numbers: +0 and -0 count as the same.
        np.testing.assert_array_equal(sent + residual, corrected)
        exact = sent.astype(np.float64) + residual.astype(np.float64)
        np.testing.assert_array_equal(exact, corrected.astype(np.float64))


def test_saturation_keeps_what_was_cut_off_rounded_once() -> None:
    pipeline = pipeline_of("fp16(overflow=saturate)")
    grad = np.array([131008, 131009, 1e6, -1e9, 3e38, 65520], np.float32)
    sent = send(pipeline, grad)
    assert sent.tolist() == [65504, 65504, 65504, -65504, 65504, 65504]
    expected = (grad.astype(np.float64) - sent).astype(np.float32)
    assert same_bits(residual_of(pipeline), expected)
    # Step by step all of it goes out.
    zero = np.zeros_like(grad)
    total = sent.astype(np.float64)
    for _ in range(20):
        total += send(pipeline, zero)
    assert (total[:3] + residual_of(pipeline)[:3]).tolist() == grad[:3].tolist()
    assert total[:3].tolist() == grad[:3].tolist()


@pytest.mark.parametrize(
    ("codec", "limit"), [("fp16(overflow=inf)", 65520.0), ("bf16", BFLOAT_OVERFLOW)]
)
def test_an_element_that_overflows_is_sent_as_inf_once(codec: str, limit: float) -> None:
    pipeline = pipeline_of(codec)
    below = np.nextafter(np.float32(limit), np.float32(0))
    grad = np.array([limit, -limit, below, 1.0], np.float32)
    sent = send(pipeline, grad)
    assert np.isinf(sent).tolist() == [True, True, False, False]
    residual = residual_of(pipeline)
    assert residual[:2].tolist() == [0, 0]
    assert sent[2] + residual[2] == below
    # With the residual of the step before, the third element overflows no more.
    assert np.isfinite(send(pipeline, np.zeros(4, np.float32))).all()


@pytest.mark.parametrize("codec", MEMORY_SPECS)
def test_all_gradients_are_sent_in_the_end_but_the_residual(codec: str) -> None:
    pipeline = pipeline_of(codec)
    rng = np.random.default_rng(5)
    steps, n = 30, 400
    grads = rng.normal(size=(steps, n)).astype(np.float32)
    sent = np.array([send(pipeline, grad) for grad in grads], np.float64)
    total = sent.sum(axis=0) + residual_of(pipeline)
    # Each step rounds the corrected gradient once, and perhaps the residual once.
    largest = np.abs(grads).astype(np.float64).sum(axis=0).max()
    # A codec of error above 1, such as dithering by the l2 norm, lets the residual grow.
    largest = max(largest, np.abs(sent).max(), np.abs(residual_of(pipeline)).max())
    np.testing.assert_allclose(
        total, grads.sum(axis=0, dtype=np.float64), rtol=0, atol=2 * steps * largest * 2.0**-24
    )
    if not np.array_equal(roundtrip(codec, grads[0]), grads[0]):
        assert np.abs(residual_of(pipeline)).sum() > 0


NONFINITE = np.array([0.0, 1.0, -2.5, np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 7e4])


@pytest.mark.parametrize("codec", MEMORY_SPECS)
@LAWS
@given(n=st.integers(1, 40), seed=seeds)
def test_nothing_nonfinite_stays_in_the_residual(codec: str, n: int, seed: int) -> None:
    pipeline = pipeline_of(codec)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        grad = with_specials(rng, rng.normal(size=n).astype(np.float32), NONFINITE)
        corrected = corrected_by(pipeline, grad, 1, 1)
        sent = send(pipeline, grad)
        residual = residual_of(pipeline)
        assert np.isfinite(residual).all()
        untouched = np.isfinite(corrected) & np.isfinite(sent)
        np.testing.assert_array_equal(residual[untouched], difference(corrected, sent)[untouched])
        assert (residual[~untouched] == 0).all()


@pytest.mark.parametrize(("beta", "gamma"), [(0.9, 1.0), (0.0, 1.0), (1.0, 0.1), (0.3, 7.0)])
@LAWS
@given(first=finite(2.0**40, 64), seed=st.integers(0, 99))
def test_beta_and_gamma_weigh_residual_and_gradient(
    beta: float, gamma: float, first: np.ndarray, seed: int
) -> None:
    pipeline = pipeline_of("topk(k=2)", f"residual(beta={beta},gamma={gamma})")
    second = np.random.default_rng(seed).normal(size=first.size).astype(np.float32)
    for grad in (first, second):
        corrected = corrected_by(pipeline, grad, beta, gamma)
        sent = send(pipeline, grad)
        np.testing.assert_array_equal(residual_of(pipeline), corrected - sent)
        np.testing.assert_array_equal(sent[sent != 0], corrected[sent != 0])


def test_beta_zero_forgets_what_was_not_sent() -> None:
    pipeline = pipeline_of("topk(k=1)", "residual(beta=0.0)")
    send(pipeline, np.array([1, 5, 2], np.float32))
    assert residual_of(pipeline).tolist() == [1, 0, 2]
    assert send(pipeline, np.zeros(3, np.float32)).tolist() == [0, 0, 0]


def test_without_a_memory_every_step_stands_alone() -> None:
    pipeline = Pipeline(config_of("topk(k=1)"))
    grad = np.array([1, 5, 2], np.float32)
    assert send(pipeline, grad).tolist() == [0, 5, 0]
    assert send(pipeline, grad).tolist() == [0, 5, 0]
    assert pipeline.state_dict()["residual"] == {}
