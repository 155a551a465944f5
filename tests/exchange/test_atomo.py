"""ATOMO: its laws; see docs/algorithms/atomo.md."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from gradcomp import Loopback, Pipeline, SpecError
from gradcomp.codec.spec import parse
from gradcomp.exchange.algorithms.atomo import sample, sampling_probabilities
from support.gradients import own_streams
from support.pipelines import config_of

SHAPES = {"a": (12, 20), "conv": (6, 4, 2, 2)}
gradients = partial(own_streams, SHAPES)


def spec_of(params: str) -> str:
    return f"atomo(min_compression_rate=0,{params})"


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([5, 4, 3, 2, 1], 2),
        ([100, 4, 3, 2, 1], 2),
        ([100, 90, 3, 2, 1], 3),
        ([7, 7, 7, 7], 4),
        ([5, 1, 0, 0], 3),
        ([0, 0, 0], 2),
        ([3, 0, 0], 1),
    ],
)
def test_probabilities_are_the_papers(values: list[float], count: int) -> None:
    probability = sampling_probabilities(np.array(values, np.float32), count)
    assert probability.sum() == pytest.approx(count)
    assert (probability <= 1 + 1e-12).all()
    assert (probability >= 0).all()
    drawn = (probability < 1) & (probability > 0)
    if drawn.any():  # in proportion
        ratio = probability[drawn] / np.array(values)[drawn]
        np.testing.assert_allclose(ratio, ratio[0])


def test_draws_have_these_probabilities() -> None:
    probability = sampling_probabilities(np.array([9, 4, 3, 2, 1], np.float32), 3)
    uniforms = (np.arange(20000) + 0.5) / 20000
    counts = np.zeros(5)
    for uniform in uniforms:
        chosen = sample(probability, 3, uniform)
        assert len(set(chosen.tolist())) == 3
        counts[chosen] += 1
    np.testing.assert_allclose(counts / len(uniforms), probability, atol=1e-3)


def test_unbiased() -> None:
    """The mean over many steps comes close, and closer with more of them."""
    loop = Loopback(config_of(spec_of("rank=3"), seed=2), 2)
    grads = gradients(2, 0)
    exact = {name: np.mean(grads[name], axis=0, dtype=np.float64) for name in SHAPES}
    total = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    errors = []
    for step in range(1, 1601):
        averages = loop.step(grads)
        for name in SHAPES:
            total[name] += averages[name][0]
        if step in (100, 1600):
            errors.append(np.linalg.norm(total["a"] / step - exact["a"]))
    assert errors[1] < 0.4 * errors[0]  # 0.25 is expected
    assert errors[1] < 0.1 * np.linalg.norm(exact["a"])


def test_ranks_draw_for_themselves_and_in_every_step_anew() -> None:
    loop = Loopback(config_of(spec_of("rank=1")), 2)
    grads = gradients(1, 0)
    averages = [loop.step({name: [grads[name][0]] * 2 for name in SHAPES}) for _ in range(6)]
    ranks = {int(np.linalg.matrix_rank(one["a"][0], tol=1e-4)) for one in averages}
    assert 2 in ranks
    assert len({one["a"][0].tobytes() for one in averages}) > 1


@pytest.mark.parametrize("values", ["fp32", "fp16", "bf16"])
def test_without_draws_each_rank_sends_its_best_approximation(values: str) -> None:
    loop = Loopback(config_of(spec_of(f"rank=4,unbiased=false,values={values}")), 3)
    grads = gradients(3, 0)
    averages = loop.step(grads)
    for name in SHAPES:
        best = np.zeros(averages[name][0].shape)
        for grad in grads[name]:
            left, middle, right = np.linalg.svd(grad.reshape(grad.shape[0], -1))
            product = left[:, :4] * middle[:4] @ right[:4]
            best += product.reshape(grad.shape) / 3
        np.testing.assert_allclose(averages[name][0], best, atol=1e-5 if values == "fp32" else 0.05)
        assert len({average.tobytes() for average in averages[name]}) == 1


@pytest.mark.parametrize("values", ["fp32", "bf16"])
def test_error_feedback_loses_nothing(values: str) -> None:
    loop = Loopback(config_of(f"residual|{spec_of(f'rank=2,unbiased=false,values={values}')}"), 2)
    applied, given = np.zeros((12, 20)), np.zeros((12, 20))
    for step in range(5):
        grads = gradients(2, step)
        applied += loop.step(grads)["a"][1]
        given += np.mean(grads["a"], axis=0, dtype=np.float64)
    left = [pipeline.state_dict()["residual"]["a"] for pipeline in loop.ranks]
    rest = np.mean(left, axis=0, dtype=np.float64).reshape(12, 20)
    assert np.abs(rest).max() > 0.1
    np.testing.assert_allclose(applied + rest, given, atol=1e-5)


def test_error_feedback_around_scaled_draws_is_refused() -> None:
    with pytest.raises(SpecError, match="diverges with unbiased=true"):
        parse("residual|atomo(rank=2)")
    assert parse("signum|atomo(rank=2)").memory


def test_exact_with_full_rank_and_zero_for_zeros() -> None:
    loop = Loopback(config_of(spec_of("rank=24")), 2)
    grads = gradients(2, 0)
    averages = loop.step(grads)
    for name in SHAPES:
        np.testing.assert_allclose(averages[name][0], np.mean(grads[name], axis=0), atol=1e-5)
    zeros = {name: [np.zeros(shape, np.float32)] * 2 for name, shape in SHAPES.items()}
    for of_ranks in loop.step(zeros).values():
        assert not of_ranks[0].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_shows_everywhere_and_never_stays(bad: float) -> None:
    loop = Loopback(config_of(f"residual|{spec_of('rank=2,unbiased=false')}"), 2)
    grads = gradients(2, 0)
    grads["a"][1][2, 3] = bad
    averages = loop.step(grads)
    assert all(np.isnan(average).all() for average in averages["a"])
    assert np.isfinite(averages["conv"][0]).all()
    for average in loop.step(gradients(2, 1))["a"]:
        assert np.isfinite(average).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("spec", ["atomo(rank=2)", "residual|atomo(rank=2,unbiased=false)"])
def test_lapack_prints_nothing(spec: str, bad: float, capfd: pytest.CaptureFixture[str]) -> None:
    loop = Loopback(config_of(spec), 2)
    first, second = loop.step({"w": [np.full((40, 40), bad, np.float32)] * 2})["w"]
    np.testing.assert_array_equal(first, second)
    average = loop.step({"w": [np.ones((40, 40), np.float32)] * 2})["w"][0]
    np.testing.assert_allclose(average, 1, atol=1e-4)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("huge", [3e38, -1e38, 1e30])
@pytest.mark.parametrize("whole", [False, True])
def test_a_huge_gradient_is_forgotten_in_its_own_step(whole: bool, huge: float) -> None:
    loop = Loopback(config_of(f"residual|{spec_of('rank=2,unbiased=false')}"), 2)
    for step in range(6):
        grads = gradients(2, step)
        if step == 2:
            for grad in grads["a"]:
                if whole:
                    grad *= np.float32(huge) / np.abs(grad).max()
                else:
                    grad[2, 3] = huge
        average, other = loop.step(grads)["a"]
        np.testing.assert_array_equal(average, other)
        if step != 2:
            assert np.abs(average).max() < 30
        for pipeline in loop.ranks:
            assert np.abs(pipeline.state_dict()["residual"]["a"]).max() < 30


def test_what_travels_dense() -> None:
    pipeline = Pipeline(config_of("atomo(rank=2)"))
    for shape in [(50,), (), (0, 4), (3, 3), (8, 8)]:
        assert pipeline.sends_dense(pipeline.resolve("w", shape))
    assert not pipeline.sends_dense(pipeline.resolve("w", (40, 40)))
