"""The residual memory on its own; the laws of error feedback are in tests/property."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradcomp import StateError
from gradcomp.memory import NoMemory, Residual, make_memory
from gradcomp.rounds import TensorKey
from gradcomp.spec import parse

KEY = TensorKey("w", (3,), 3)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def sent(*values: float) -> Callable[[np.ndarray], None]:
    def subtract(array: np.ndarray) -> None:
        array -= floats(*values)

    return subtract


def test_make_memory_reads_the_stage() -> None:
    assert isinstance(make_memory(None, {}), NoMemory)
    memory = make_memory(parse("residual(beta=0.5,gamma=2)|fp16").memory, {})
    assert isinstance(memory, Residual)
    assert (memory.beta, memory.gamma) == (0.5, 2.0)


def test_no_memory_hands_the_gradient_through() -> None:
    grad = floats(1, 2, 3)
    memory = NoMemory()
    assert memory.compensate(grad, KEY) is grad
    memory.update(KEY, sent(1, 1, 1), finite=True)
    assert grad.tolist() == [1, 2, 3]


def test_residual_keeps_what_was_not_sent() -> None:
    residuals: dict[str, np.ndarray] = {}
    memory = Residual(1.0, 1.0, residuals)
    grad = floats(1, 2, 3)
    corrected = memory.compensate(grad, KEY)
    assert corrected.tolist() == [1, 2, 3]
    memory.update(KEY, sent(0, 0, 3), finite=True)
    assert residuals["w"].tolist() == [1, 2, 0]
    assert memory.compensate(grad, KEY).tolist() == [2, 4, 3]
    assert grad.tolist() == [1, 2, 3], "the gradient is the caller's"


def test_beta_and_gamma() -> None:
    residuals = {"w": floats(8, -8, 0.5)}
    corrected = Residual(0.25, 3.0, residuals).compensate(floats(1, 2, 0), KEY)
    assert corrected.tolist() == [5, 4, 0.125]


def test_tensors_have_residuals_of_their_own() -> None:
    residuals: dict[str, np.ndarray] = {}
    memory = Residual(1.0, 1.0, residuals)
    other = TensorKey("v", (2,), 2)
    memory.compensate(floats(1, 2, 3), KEY)
    memory.compensate(floats(7, np.inf), other)  # rounds of several tensors overlap
    memory.update(KEY, sent(0, 0, 0), finite=True)
    memory.update(other, sent(0, 0), finite=True)
    assert residuals["w"].tolist() == [1, 2, 3]
    assert residuals["v"].tolist() == [7, 0]


def test_a_matrix_has_a_flat_residual() -> None:
    residuals: dict[str, np.ndarray] = {}
    Residual(1.0, 1.0, residuals).compensate(np.ones((2, 3), np.float32), TensorKey("m", (2, 3), 6))
    assert residuals["m"].shape == (6,)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_leaves_no_trace(bad: float) -> None:
    residuals = {"w": floats(1, 1, 1)}
    memory = Residual(1.0, 1.0, residuals)
    memory.compensate(floats(bad, 2, 3), KEY)
    memory.update(KEY, sent(0, 0, 0), finite=True)
    assert residuals["w"].tolist() == [0, 3, 4]


def test_a_finite_gradient_that_is_sent_as_inf_leaves_no_trace() -> None:
    residuals: dict[str, np.ndarray] = {}
    memory = Residual(1.0, 1.0, residuals)
    memory.compensate(floats(7e4, 2, 3), KEY)
    memory.update(KEY, sent(np.inf, 2, 2), finite=False)
    assert residuals["w"].tolist() == [0, 0, 1]


def test_a_sum_that_overflows_leaves_no_trace() -> None:
    residuals = {"w": floats(3e38, 1, 1)}
    memory = Residual(1.0, 1.0, residuals)
    corrected = memory.compensate(floats(3e38, 1, 1), KEY)
    assert corrected[0] == np.inf
    memory.update(KEY, sent(0, 2, 0), finite=True)
    assert residuals["w"].tolist() == [0, 0, 2]


def test_a_step_that_fails_loses_nothing() -> None:
    residuals: dict[str, np.ndarray] = {}
    memory = Residual(1.0, 1.0, residuals)
    memory.compensate(floats(1, 2, 3), KEY)  # and no update: the codec raised
    assert memory.compensate(floats(1, 1, 1), KEY).tolist() == [2, 3, 4]


def test_a_residual_of_another_size_is_refused() -> None:
    memory = Residual(1.0, 1.0, {"w": floats(1, 2)})
    with pytest.raises(StateError, match="residual of 'w' has 2 elements and its gradient 3: the"):
        memory.compensate(floats(1, 2, 3), KEY)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 16, 100_003])
def test_compensate_and_zeroing_at_every_length(n: int) -> None:
    rng = np.random.default_rng(n)
    grad = rng.normal(size=n).astype(np.float32)
    before = rng.normal(size=n).astype(np.float32)
    residuals = {"w": before.copy()}
    memory = Residual(0.9, 1.1, residuals)
    key = TensorKey("w", (n,), n)
    expected = np.float32(0.9) * before + np.float32(1.1) * grad
    assert memory.compensate(grad, key).tobytes() == expected.tobytes()
    memory.update(key, lambda values: values.__setitem__(slice(n // 2, None), np.nan), finite=False)
    assert residuals["w"][: n // 2].tobytes() == expected[: n // 2].tobytes()
    assert not residuals["w"][n // 2 :].any()
