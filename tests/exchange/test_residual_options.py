"""residual(limit=L): what one gradient may leave in the memory; residual(reset_every=T)."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import Loopback, SpecError
from gradcomp.exchange.memory import NormLimit
from support.pipelines import configured

SHAPE = (64, 80)
SPIKE = 5


def gradient(step: int) -> np.ndarray:
    return np.random.default_rng(step).standard_normal(SHAPE, np.float32)


def norms(spec: str, steps: int = 60, spike: float = 1000) -> list[float]:
    """The norms of the averages; the gradient of one step is a spike."""
    job = Loopback(spec, 2)
    found = []
    for step in range(steps):
        grad = gradient(step) * np.float32(spike if step == SPIKE else 1)
        (average, _) = job.step({"w": [grad, grad]})["w"]
        found.append(float(np.linalg.norm(average)))
    return found


@pytest.mark.parametrize("codec", ["topk(ratio=0.05)", "sign", "int4", "sketch(ratio=0.2)"])
def test_a_spike_leaves_little_behind(codec: str) -> None:
    calm = max(norms(f"residual|{codec}", spike=1))
    assert max(norms(f"residual|{codec}")[SPIKE:]) > 20 * calm
    assert max(norms(f"residual(limit=5)|{codec}")) < 6 * calm


def test_ordinary_gradients_stay_as_they_are() -> None:
    assert norms("residual(limit=5)|topk(ratio=0.05)", spike=1) == norms(
        "residual|topk(ratio=0.05)", spike=1
    )


@pytest.mark.parametrize("exchange", ["gather", "sra", "two_level"])
def test_every_exchange_bounds_gradients(exchange: str) -> None:
    job = Loopback(
        configured("residual(limit=5)|topk(ratio=0.05)", exchange=exchange, ranks_per_node=1), 2
    )
    found = []
    for step in range(20):
        grad = gradient(step) * np.float32(1000 if step == SPIKE else 1)
        found.append(float(np.linalg.norm(job.step({"w": [grad, grad]})["w"][0])))
    assert max(found[SPIKE:]) < 8 * max(found[:SPIKE])


def test_a_loss_scale_changes_nothing() -> None:
    plain, scaled = (Loopback("residual(limit=2)|topk(ratio=0.05)", 1) for _ in range(2))
    for step in range(20):
        factor = np.float32(2.0 ** (step // 4))
        scaled.set_loss_scale(float(factor))
        grad = gradient(step) * np.float32(50 if step == SPIKE else 1)
        (expected,), (average,) = (
            plain.step({"w": [grad]})["w"],
            scaled.step({"w": [factor * grad]})["w"],
        )
        np.testing.assert_allclose(average / factor, expected, rtol=1e-5)


def test_the_mean_is_saved_and_states_without_it_load() -> None:
    spec = "residual(limit=2)|topk(ratio=0.05)"
    job = Loopback(spec, 1)
    job.step({"w": [gradient(0)]})
    state = job.ranks[0].state_dict()
    assert state["norm"]["w"] == pytest.approx(np.linalg.norm(gradient(0)), rel=1e-6)
    resumed, earlier = Loopback(spec, 1), Loopback(spec, 1)
    resumed.ranks[0].load_state_dict(state)
    earlier.ranks[0].load_state_dict({key: state[key] for key in state if key != "norm"})
    spike = 100 * gradient(1)
    (expected,) = job.step({"w": [spike]})["w"]
    np.testing.assert_array_equal(resumed.step({"w": [spike]})["w"][0], expected)
    assert np.linalg.norm(earlier.step({"w": [spike]})["w"][0]) > 10 * np.linalg.norm(expected)


def test_zeros_and_values_that_are_not_finite_leave_the_mean() -> None:
    means: dict[str, np.ndarray] = {}
    limit = NormLimit(2, means)
    zeros = np.zeros(4, np.float32)
    assert limit.factor(zeros, "w") == 1
    assert means == {}
    assert limit.factor(np.full(4, 1.5, np.float32), "w") == 1
    for bad in (zeros, np.full(4, np.nan, np.float32), np.full(4, np.inf, np.float32)):
        assert limit.factor(bad, "w") == 1
        assert means["w"] == 3
    assert limit.factor(np.full(4, 3e38, np.float32), "w") == pytest.approx(6 / 6e38, rel=1e-6)
    assert means["w"] == pytest.approx(0.9 * 3 + 0.1 * 6)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(SpecError, match=r"limit=0.5.*at least 1"):
        Loopback("residual(limit=0.5)|sign", 1).step({"w": [gradient(0)]})


def test_resets_drop_the_residual() -> None:
    """As LoCo's: steps after a reset are those of a new job, with other numbers."""
    job, plain = (
        Loopback(f"residual({params})|topk(ratio=0.05)", 2)
        for params in ("reset_every=4", "beta=1")
    )
    for step in range(8):
        grads = [gradient(step), gradient(100 + step)]
        (average, _), (without, _) = job.step({"w": grads})["w"], plain.step({"w": grads})["w"]
        assert (average == without).all() == (step < 4)
        if step % 4 == 0:
            (first, _) = Loopback("residual|topk(ratio=0.05)", 2).step({"w": grads})["w"]
            np.testing.assert_array_equal(average, first)
