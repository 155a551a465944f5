"""Jobs of ranks that come and go: a rank that is alone sends nothing where a spec has error feedback."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from gradcomp import Config, Loopback, Pipeline
from gradcomp.adapter_api import moved, resized
from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.patterns.single_rank import Alone
from gradcomp.runtime.loopback import run_rounds
from gradcomp.runtime.start_report import StartReport
from support.pipelines import configured

SHAPE = (64, 128)
FEEDBACK = [
    "residual|topk(ratio=0.02)",
    "residual(beta=0.9,gamma=0.5)|topk(ratio=0.02)",
    "residual(average=0.5)|int8",
    "residual(lr=scale)|sign",
    "residual|fp16",
    "residual|adaptive(rate=0.5,preset=basis)",
    "powersgd(rank=2,start_step=0)",
    "powersgd(rank=2,start_step=0,lr=scale)",
]
BASIS = FEEDBACK[5]


def gradient(step: int) -> FloatArray:
    return np.random.default_rng(step).standard_normal(SHAPE, np.float32)


def average(pipeline: Pipeline, step: int) -> FloatArray:
    """The average of a step of a pipeline that is alone."""
    pipeline.set_lr(0.1)
    ((result,),) = run_rounds([pipeline.bucket_round("w", {"w": gradient(step)})])
    return result.reshape(SHAPE)


def survivor(spec: str, steps: int = 3) -> Pipeline:
    """The pipeline of rank 0 after steps with another rank, which is gone."""
    loop = Loopback(configured(spec), 2)
    loop.ranks[0] = Pipeline(configured(spec), 0, 2, elastic=True)
    for step in range(steps):
        loop.set_lr(0.1)
        loop.step({"w": [gradient(step), gradient(step + 100)]})
    return moved(loop.ranks[0], resized(loop.ranks[0].state_dict(), 0, 1))


def weights(spec: str) -> tuple[float, float]:
    """beta and gamma."""
    return (0.9, 0.5) if "beta" in spec else (1.0, 1.0)


@pytest.mark.parametrize("spec", FEEDBACK)
def test_a_survivor_applies_its_gradient_and_all_that_was_unsent(spec: str) -> None:
    alone = survivor(spec)
    beta, gamma = weights(spec)
    residual = alone.state_dict()["residual"]["w"].reshape(SHAPE)
    assert np.any(residual)
    corrected = np.float32(beta) * residual + np.float32(gamma) * gradient(3)
    np.testing.assert_array_equal(average(alone, 3), corrected)
    assert "w" not in alone.state_dict()["residual"]
    np.testing.assert_array_equal(average(alone, 4), np.float32(gamma) * gradient(4))


@pytest.mark.parametrize("overwrite", [False, True])
def test_averages_are_gradients_only_where_these_may_be_overwritten(overwrite: bool) -> None:
    pipeline = Pipeline(configured("residual|topk(ratio=0.02)"), elastic=True)
    grad = gradient(0)
    round_ = pipeline.bucket_round("w", {"w": grad}, overwrite=overwrite)
    ((result,),) = run_rounds([round_])
    np.testing.assert_array_equal(result.reshape(SHAPE), gradient(0))
    assert np.may_share_memory(result, grad) == overwrite


@pytest.mark.parametrize("spec", FEEDBACK)
def test_nothing_is_sent_or_counted(spec: str) -> None:
    alone = Pipeline(configured(spec), elastic=True)
    for step in range(3):
        average(alone, step)
    assert alone.stats.total_bytes == 0
    assert alone.stats.ratio == 1
    assert alone.comparison.next_step == 3


def test_tensors_that_powersgd_does_not_take_travel_dense() -> None:
    pipeline = Pipeline(configured("powersgd(rank=2)"), elastic=True)
    assert pipeline.resolve("bias", (9,)).dense


def test_a_learned_basis_stays_until_others_come() -> None:
    alone = survivor(BASIS)
    before = alone.state_dict()["basis"]["w"]
    assert np.any(before)
    average(alone, 3)
    np.testing.assert_array_equal(alone.state_dict()["basis"]["w"], before)
    again = moved(alone, resized(alone.state_dict(), 0, 2))
    assert again.elastic
    assert not isinstance(again.resolve("w", SHAPE).aggregator, Alone)


def test_a_learning_rate_of_zero_keeps_the_residual() -> None:
    alone = survivor("residual(lr=scale)|sign")
    before = alone.state_dict()["residual"]["w"]
    alone.set_lr(0.0)
    ((result,),) = run_rounds([alone.bucket_round("w", {"w": gradient(3)})])
    np.testing.assert_array_equal(result.reshape(SHAPE), gradient(3))
    np.testing.assert_array_equal(alone.state_dict()["residual"]["w"], before)


def test_numbers_that_are_not_finite_pass_once() -> None:
    alone = survivor("residual|topk(ratio=0.02)")
    damaged = gradient(3)
    damaged[0, 0] = np.inf
    ((result,),) = run_rounds([alone.bucket_round("w", {"w": damaged})])
    assert np.isinf(result[0])
    assert np.isfinite(average(alone, 4)).all()


@pytest.mark.parametrize(
    "spec", ["sign", "signum|sign", "dgc(ratio=0.01)", "residual|atomo(rank=2,unbiased=false)"]
)
def test_other_specs_compress(spec: str) -> None:
    pipeline = Pipeline(configured(spec), elastic=True)
    pipeline.set_epoch(0)
    assert not isinstance(pipeline.resolve("w", SHAPE).aggregator, Alone)


@pytest.mark.parametrize(("ranks", "elastic"), [(1, False), (2, True)])
def test_other_jobs_compress(ranks: int, elastic: bool) -> None:
    pipeline = Pipeline("residual|topk(ratio=0.02)", 0, ranks, elastic=elastic)
    assert not isinstance(pipeline.resolve("w", SHAPE).aggregator, Alone)


def test_the_start_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pipeline = Pipeline(Config.from_spec("residual|topk(ratio=0.02)"), elastic=True)
    StartReport(pipeline).begin(pipeline.resolve_all({"w": SHAPE, "bias": (9,)}))
    assert "does not compress 1 of 2 tensors, until other ranks come" in caplog.text
