"""The outer optimizer: torch's SGD on pseudo-gradients, and its laws with the loopback."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradcomp import Loopback, StateError
from gradcomp.codec.arrays import FloatArray
from gradcomp.runtime.outer.sgd import OuterSGD
from support.pipelines import config_of

SHAPE = (96, 64)
NUMEL = SHAPE[0] * SHAPE[1]


def normal(*seed: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(NUMEL, np.float32)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_steps_are_those_of_torch(momentum: float, nesterov: bool) -> None:
    outer = OuterSGD({"w": normal(0)}, 0.7, momentum, nesterov)
    p = torch.nn.Parameter(torch.from_numpy(normal(0)))
    theirs = torch.optim.SGD([p], lr=0.7, momentum=momentum, nesterov=nesterov)
    for step in range(5):
        average = normal(1, step)
        p.grad = torch.from_numpy(average.copy())
        theirs.step()
        np.testing.assert_allclose(outer.step("w", average), p.detach().numpy(), atol=1e-5)


def test_one_inner_step_of_sgd_is_data_parallel_training() -> None:
    """H = 1, outer learning rate 1, no momentum: SGD on averaged gradients, up to rounding."""
    ranks, lr = 3, np.float32(0.1)
    loop = Loopback("identity", ranks)
    outers = [OuterSGD({"w": normal(0)}, 1.0, 0.0, False) for _ in range(ranks)]
    parallel = normal(0).astype(np.float64)
    for step in range(5):
        grads = [normal(rank, step, 1) for rank in range(ranks)]
        changes = [
            outer.start["w"] - (outer.start["w"] - lr * grad)
            for outer, grad in zip(outers, grads, strict=True)
        ]
        averages = loop.step({"w": [one.reshape(SHAPE) for one in changes]})["w"]
        values = [
            outer.step("w", average.reshape(-1))
            for outer, average in zip(outers, averages, strict=True)
        ]
        parallel -= lr * np.mean(grads, axis=0)
        np.testing.assert_allclose(values[0], parallel, atol=1e-5)
        assert len({value.tobytes() for value in values}) == 1


@pytest.mark.parametrize("spec", ["residual|topk(ratio=0.05)", "residual|sign", "residual|int4"])
def test_applied_changes_and_residuals_are_all_changes(spec: str) -> None:
    """Learning rate 1 without momentum: nothing of the ranks' changes is lost."""
    loop = Loopback(config_of(spec), 2)
    outer = OuterSGD({"w": normal(0)}, 1.0, 0.0, False)
    total = np.zeros(NUMEL)
    for step in range(10):
        changes = [normal(rank, step, 2) for rank in range(2)]
        total += np.mean(changes, axis=0, dtype=np.float64)
        averages = loop.step({"w": [one.reshape(SHAPE) for one in changes]})["w"]
        outer.step("w", averages[0].reshape(-1))
    waiting = np.mean([rank.state_dict()["residual"]["w"] for rank in loop.ranks], axis=0)
    np.testing.assert_allclose(normal(0) - outer.start["w"] + waiting, total, atol=1e-4)


def test_state_comes_back() -> None:
    one, other = (OuterSGD({"w": normal(seed)}, 0.7, 0.9, True) for seed in (0, 1))
    one.step("w", normal(2))
    other.load_state_dict(one.state_dict())
    assert one.step("w", normal(3)).tobytes() == other.step("w", normal(3)).tobytes()
    for damage in ({}, {"start": {"w": normal(0)[:5]}, "momentum": {"w": normal(0)}}, 3):
        with pytest.raises(StateError):
            other.load_state_dict(damage)  # type: ignore[arg-type]
