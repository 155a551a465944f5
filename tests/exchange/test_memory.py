"""Memories on their own; the laws of error feedback are in tests/codecs/test_error_feedback.py."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import StateError
from gradcomp.codec.spec import parse
from gradcomp.exchange.memory import NoMemory, Residual, Signum, make_memory
from gradcomp.exchange.rounds import TensorKey

KEY = TensorKey("w", (3,), 3)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_make_memory_reads_the_stage() -> None:
    assert isinstance(make_memory(None, {}, 1), NoMemory)
    memory = make_memory(parse("residual(beta=0.5,gamma=2)|fp16").memory, {}, 1)
    assert isinstance(memory, Residual)
    assert (memory.beta, memory.gamma) == (0.5, 2.0)


def test_no_memory_hands_the_gradient_through() -> None:
    grad = floats(1, 2, 3)
    source = NoMemory().source(grad, KEY)
    assert np.shares_memory(source.grad, grad)
    assert source.residual is None


def test_a_residual_begins_at_zero_and_is_kept() -> None:
    residuals: dict[str, np.ndarray] = {}
    memory = Residual(0.5, 2.0, residuals)
    source = memory.source(floats(1, 2, 3), KEY)
    assert source.residual is residuals["w"]
    assert source.residual.tolist() == [0, 0, 0]
    assert (source.beta, source.gamma) == (0.5, 2.0)
    assert memory.source(floats(1, 2, 3), KEY).residual is source.residual


def test_tensors_have_residuals_of_their_own() -> None:
    residuals: dict[str, np.ndarray] = {}
    memory = Residual(1.0, 1.0, residuals)
    memory.source(floats(1, 2, 3), KEY)
    memory.source(np.ones((2, 3), np.float32), TensorKey("m", (2, 3), 6))
    assert {name: value.shape for name, value in residuals.items()} == {"w": (3,), "m": (6,)}


def test_signum_keeps_nothing_that_is_not_finite() -> None:
    momenta: dict[str, np.ndarray] = {}
    memory = Signum(0.5, momenta)
    assert memory.source(floats(np.nan, 2, np.inf), KEY).grad.tolist()[1] == 2
    assert np.isnan(momenta["w"][0])
    memory.sent(KEY)
    assert momenta["w"].tolist() == [0, 2, 0]
    assert memory.source(floats(2, 4, 2), KEY).grad.tolist() == [1, 3, 1]


@pytest.mark.parametrize("memory", [Residual(1.0, 1.0, {"w": floats(1, 2)})])
def test_a_residual_of_another_size_is_refused(memory: Residual) -> None:
    with pytest.raises(StateError, match="residual of 'w' has 2 elements and its gradient 3: the"):
        memory.source(floats(1, 2, 3), KEY)
