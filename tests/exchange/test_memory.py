"""Memories alone; the laws of error feedback are in tests/codecs/test_error_feedback.py."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import Pipeline, StateError, get_codec
from gradcomp.codec.spec import parse
from gradcomp.exchange.make_memory import make_memory
from gradcomp.exchange.memory import NoMemory, Residual
from gradcomp.exchange.momentum import MomentumCorrection, Signum
from gradcomp.exchange.rounds import TensorKey
from support.pipelines import config_of, residual_of, send

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


def test_an_average_of_errors_is_that_of_loco() -> None:
    """The paper's rule: e = average * e + (1 - average) * (g + e - sent), beginning at 0."""
    average, codec = 0.8, get_codec("int4")
    pipeline = Pipeline(config_of(f"residual(average={average})|int4"))
    e = np.zeros(500, np.float32)
    for number in range(6):
        grad = np.random.default_rng(number).standard_normal(500, np.float32)
        found = send(pipeline, grad)
        sent = codec.decode(codec.encode(grad + e))
        np.testing.assert_allclose(found, sent, atol=1e-5)
        e = average * e + (1 - average) * (grad + e - found)
        np.testing.assert_allclose((1 - average) * residual_of(pipeline), e, atol=1e-6)
    assert e.any()


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


# ------------------------------------------------------------- the arithmetic, against numpy's

ODD = floats(-0.0, 0.0, np.nan, np.inf, -np.inf, 3e38, 1e-45, 1)


def odd_floats(rng: np.random.Generator, size: int) -> np.ndarray:
    """Normal numbers, with zeros of both signs, large and nonfinite ones among them."""
    values = rng.standard_normal(size, np.float32)
    values[rng.integers(0, size, size // 4)] = rng.choice(ODD, size // 4)
    return values


def finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.float32(0))


def same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    """NaNs are equal whatever their bits are."""
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), ~number)
    assert got[number].tobytes() == expected[number].tobytes()


SIZES = [1, 1000, 200_001]


@pytest.mark.parametrize("size", SIZES)
def test_a_residual_is_updated_as_numpy_would(size: int) -> None:
    rng = np.random.default_rng(size)
    residual, grad, sent = (odd_floats(rng, size) for _ in range(3))
    memory = Residual(0.5, 2.0, {"w": residual.copy()})
    key = TensorKey("w", (size,), size)
    with np.errstate(all="ignore"):
        corrected = np.float32(0.5) * residual + np.float32(2) * grad
        unsent = finite(corrected - sent)
    same_bits(memory.compensate(grad, key), corrected)
    memory.update(key, sent)
    same_bits(memory.unsent(key), unsent)


@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_momentum_is_corrected_as_numpy_would(size: int, nesterov: bool, masking: bool) -> None:
    rng = np.random.default_rng(size)
    v, m, grad, sent, average = (odd_floats(rng, size) for _ in range(5))
    sent[::3] = 0
    params = {"momentum": 0.9, "nesterov": nesterov, "masking": masking}
    velocities, momenta = {"w": v.copy()}, {"w": m.copy()}
    memory = MomentumCorrection(
        {**params, "clip": "none", "clip_norm": 1.0}, velocities, momenta, 1
    )
    key = TensorKey("w", (size,), size)

    def advance(grad: np.ndarray) -> np.ndarray:
        nonlocal m
        m = np.float32(0.9) * (m + grad) if nesterov else np.float32(0.9) * m + grad
        return m + grad if nesterov else m

    with np.errstate(all="ignore"):
        v = v + advance(grad)
        same_bits(memory.compensate(grad, key), v)
        same_bits(momenta["w"], m)
        v = finite(v - sent)
        m = finite(np.where(sent != 0, np.float32(0), m) if masking else m)
        memory.update(key, sent)
        same_bits(velocities["w"], v)
        same_bits(momenta["w"], m)
        same_bits(memory.of_average(average, key), advance(average))
        same_bits(momenta["w"], finite(m))


@pytest.mark.parametrize(
    ("clip", "world_size", "scale"),
    [("none", 4, 1.0), ("local_norm", 4, 0.2), ("scaled_norm", 4, 0.4)],
)
def test_clipping_scales_a_gradient_down(clip: str, world_size: int, scale: float) -> None:
    params = {"momentum": 0.5, "nesterov": False, "masking": True, "clip": clip, "clip_norm": 1.0}
    memory = MomentumCorrection(params, {}, {}, world_size)

    def scale_of(*grad: float) -> float:
        correction = memory.source(floats(*grad), KEY).correction
        assert correction is not None
        return correction.scale

    assert scale_of(3, 0, 4) == np.float32(scale)
    assert scale_of(0.3, 0, 0.4) == 1.0
    assert scale_of(3, 0, np.inf) == 1.0
