"""The signum memory: its definition, the reference's data, its state."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import Pipeline, SpecError, StateError
from gradcomp.codec.spec import parse
from support.pipelines import config_of, momentum_of, send
from support.reference import reference


def test_signum_is_that_of_grace_step_by_step() -> None:
    about, arrays = reference("grace-signum-01")
    for name in about["tensors"]:
        grad, momentum = arrays[f"grad.{name}"], arrays[f"momentum.{name}"]
        for rank in range(grad.shape[1]):
            pipeline = Pipeline(config_of("signum(momentum=0.9)|sign"))
            for step in range(grad.shape[0]):
                decoded = send(pipeline, grad[step, rank])
                expected = momentum[step, rank].ravel()
                np.testing.assert_allclose(momentum_of(pipeline), expected, rtol=1e-6, atol=1e-7)
                signs = arrays[f"decoded.{name}"][step, rank].ravel()
                np.testing.assert_array_equal(np.sign(decoded), signs)


def test_what_is_sent_is_the_moving_average() -> None:
    pipeline = Pipeline(config_of("signum(momentum=0.75)|topk(k=2)"))
    assert send(pipeline, np.array([4, 0], np.float32)).tolist() == [4, 0]
    assert send(pipeline, np.array([0, 8], np.float32)).tolist() == [3, 2]


def test_a_nonfinite_element_is_sent_once() -> None:
    pipeline = Pipeline(config_of("signum|topk(k=2)"))
    assert np.isnan(send(pipeline, np.array([np.nan, 1], np.float32))[0])
    assert momentum_of(pipeline)[0] == 0
    assert np.isfinite(send(pipeline, np.ones(2, np.float32))).all()


def test_a_resumed_run_continues_bit_by_bit() -> None:
    grads = np.random.default_rng(0).normal(size=(6, 50)).astype(np.float32)
    straight, first, second = (Pipeline(config_of("signum|sign")) for _ in range(3))
    expected = [send(straight, grad) for grad in grads]
    for grad in grads[:3]:
        send(first, grad)
    second.load_state_dict(first.state_dict())
    for grad, sent in zip(grads[3:], expected[3:], strict=True):
        np.testing.assert_array_equal(send(second, grad), sent)


def test_another_world_size_takes_the_mean() -> None:
    states = []
    for rank in range(2):
        pipeline = Pipeline(config_of("signum|sign"), rank, 2)
        states.append(pipeline.state_dict())
        states[-1]["momentum"]["w"] = np.array([1, 2 + rank], np.float32)
    pipeline = Pipeline(config_of("signum|sign"))
    pipeline.load_state_dict(states)
    assert momentum_of(pipeline).tolist() == [1, 2.5]
    with pytest.raises(StateError, match="the momentum of 'w' has 2 elements and its gradient 3"):
        send(pipeline, np.ones(3, np.float32))


def test_the_parameter() -> None:
    memory = parse("signum|sign").memory
    assert memory is not None
    assert memory.text == "signum(momentum=0.9)"
    with pytest.raises(SpecError, match="momentum"):
        parse("signum(momentum=1.0)|sign")
    with pytest.raises(SpecError):
        parse("residual|signum|sign")
