"""``lr=scale``: error feedback in units of parameter updates, of `residual` and of `powersgd`."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import Config, ConfigError, Loopback, Pipeline
from gradcomp.runtime.loopback import run_rounds
from support.pipelines import config_of

RATES = (0.5, 0.1, 0.1, 2.0, 0.003)
SHAPE = (64, 70)
POWERSGD = "powersgd(rank=2,start_step=0,lr=scale)"


def gradient(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).standard_normal(SHAPE, np.float32)


def configured(spec: str, exchange: str = "auto") -> Config:
    return Config.model_validate(
        {"version": 1, "compress": {"default": spec, "exchange": exchange}}
    )


@pytest.mark.parametrize(
    ("spec", "exchange"),
    [
        ("residual(lr=scale)|topk(ratio=0.02)", "auto"),
        ("residual(lr=scale)|randomk(ratio=0.1)", "auto"),
        ("residual(lr=scale)|sign", "auto"),
        ("residual(lr=scale)|topk(ratio=0.02)", "sra"),
        ("residual(lr=scale)|topk(ratio=0.02)", "sparse_allreduce"),
        ("residual(lr=scale)|sketch(ratio=0.2)", "auto"),
        ("residual(lr=scale)|chunk_allreduce(ratio=0.05)", "auto"),
        (POWERSGD, "auto"),
        (f"{POWERSGD[:-1]},iters_per_step=2)", "auto"),
        (f"{POWERSGD[:-1]},variant=library,iters_per_step=2)", "auto"),
    ],
)
def test_updates_and_residuals_add_up_to_all_updates(spec: str, exchange: str) -> None:
    loop = Loopback(configured(spec, exchange), 2)
    applied, owed = np.zeros(SHAPE), np.zeros(SHAPE)
    for step, rate in enumerate(RATES):
        loop.set_lr(rate)
        grads = [gradient(rank, step) for rank in range(2)]
        applied += rate * loop.step({"w": grads})["w"][0]
        owed += rate * np.mean(grads, axis=0, dtype=np.float64)
        residual = np.mean(
            [rank.state_dict()["residual"]["w"] for rank in loop.ranks], axis=0, dtype=np.float64
        )
        np.testing.assert_allclose(
            applied + rate * residual.reshape(SHAPE), owed, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("spec", ["residual(lr=scale)|topk(ratio=0.02)", POWERSGD])
def test_a_constant_rate_changes_nothing(spec: str) -> None:
    plain, scaled = (
        Loopback(configured(one), 2) for one in (spec.replace("scale", "ignore"), spec)
    )
    for step in range(3):
        scaled.set_lr(0.1)
        grads = {"w": [gradient(rank, step) for rank in range(2)]}
        assert plain.step(grads)["w"][0].tobytes() == scaled.step(grads)["w"][0].tobytes()


@pytest.mark.parametrize(
    ("spec", "exchange"),
    [
        ("residual(lr=scale)|topk(ratio=0.02)", "auto"),
        ("residual(lr=scale)|topk(ratio=0.02)", "sra"),
        ("residual(lr=scale)|topk(ratio=0.02)", "sparse_allreduce"),
        (POWERSGD, "auto"),
        (f"{POWERSGD[:-1]},variant=library)", "auto"),
    ],
)
@pytest.mark.parametrize("rate", [0.0, 1e-17])
def test_a_step_without_a_rate_leaves_the_residual_alone(
    spec: str, exchange: str, rate: float
) -> None:
    loop = Loopback(configured(spec, exchange), 2)
    loop.set_lr(0.1)
    loop.step({"w": [gradient(rank, 0) for rank in range(2)]})
    before = [rank.state_dict() for rank in loop.ranks]
    loop.set_lr(rate)
    average = loop.step({"w": [gradient(rank, 1) for rank in range(2)]})["w"][0]
    assert average.any()
    for rank, saved in zip(loop.ranks, before, strict=True):
        now = rank.state_dict()
        for kind in ("residual", "residual_lr"):
            assert now[kind]["w"].tobytes() == saved[kind]["w"].tobytes()


def test_tensors_have_rates_of_their_own() -> None:
    pipeline = Pipeline(config_of("residual(lr=scale)|topk(ratio=0.02)"))
    for step, rates in enumerate(({"a": 0.1, "b": 1.0}, {"a": 0.1, "b": 0.5})):
        pipeline.set_lr(rates)
        for name in rates:
            run_rounds([pipeline.round(name, gradient(0, step))])
    residuals = pipeline.state_dict()["residual"]
    assert residuals["a"].tobytes() != residuals["b"].tobytes()
    saved = pipeline.state_dict()["residual_lr"]
    assert {name: float(value[0]) for name, value in saved.items()} == {
        "a": float(np.float32(0.1)),
        "b": 0.5,
    }
    for spec in ("residual(lr=scale)|topk(ratio=0.02)", POWERSGD):
        pipeline = Pipeline(config_of(spec))
        with pytest.raises(ConfigError, match=r"residual of 'c' .* unknown: call set_lr\(lr\)"):
            run_rounds([pipeline.round("c", gradient(0, 0))])


@pytest.mark.parametrize("spec", ["residual(lr=scale)|topk(ratio=0.02)", POWERSGD])
def test_a_resumed_job_scales_by_the_saved_rate(spec: str) -> None:
    def run(loop: Loopback, step: int) -> bytes:
        loop.set_lr(RATES[step])
        return loop.step({"w": [gradient(rank, step) for rank in range(2)]})["w"][0].tobytes()

    first, second, third = (Loopback(configured(spec), 2) for _ in range(3))
    run(first, 0)
    for old, new, other in zip(first.ranks, second.ranks, third.ranks, strict=True):
        new.load_state_dict(old.state_dict())
        other.load_state_dict({**old.state_dict(), "residual_lr": {}})
    expected = run(first, 1)
    assert run(second, 1) == expected
    assert run(third, 1) != expected


@pytest.mark.parametrize("spec", ["residual(lr=scale)|topk(ratio=0.02)", POWERSGD])
def test_a_residual_that_goes_dense_is_applied_at_its_own_rate(spec: str) -> None:
    schedule = [spec, {"from_step": 1, "use": "identity"}]
    pipeline = Pipeline(Config.model_validate({"version": 1, "compress": {"default": schedule}}))
    pipeline.set_lr(0.5)
    ((sent),) = run_rounds([pipeline.round("w", gradient(0, 0))])
    pipeline.set_lr(0.25)
    ((rest),) = run_rounds([pipeline.round("w", gradient(0, 1))])
    owed = 0.5 * gradient(0, 0) + 0.25 * gradient(0, 1)
    np.testing.assert_allclose(0.5 * sent + 0.25 * rest, owed.reshape(-1), atol=1e-5)


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf"), 1e13])
def test_a_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"learning rate is .*; it must be in \[0, 1e\+12\]"):
        Loopback("fp16", 1).set_lr(rate)


def test_the_default_does_not_appear_in_a_canonical_spec() -> None:
    text = Config.from_spec("residual(lr=ignore)|fp16").compress.default
    assert str(text) == "residual(beta=1.0,gamma=1.0)|fp16(overflow=inf)"
    assert "lr=" not in str(Config.from_spec("powersgd").compress.default)
    for spec in ("residual(lr=scale)|fp16", POWERSGD):
        config = Config.from_spec(spec)
        assert "lr=scale" in str(config.compress.default)
        assert config.scales_lr
    assert not Config.from_spec("residual|fp16").scales_lr
