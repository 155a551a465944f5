"""Dion2: its formulas, bytes and state; see docs/algorithms/dion.md."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradcomp import Loopback, SpecError
from gradcomp.codec.spec import parse
from gradcomp.exchange.algorithms.polar_factor import polar_factor
from support.dion import Reference2
from support.pipelines import config_of
from support.step_laws import check_bits, check_recovers, gradients, take_state

SHAPE = (64, 96)


@pytest.mark.parametrize("shape", [SHAPE, (96, 64), (64, 64)])
@pytest.mark.parametrize(("fraction", "lines"), [(0.25, 16), (0.1, 7), (1.0, 64)])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_steps_are_those_of_the_formulas(
    ranks: int, fraction: float, lines: int, shape: tuple[int, int]
) -> None:
    loop = Loopback(config_of(f"dion2(fraction={fraction},momentum=0.9)"), ranks)
    reference = Reference2(ranks, shape, lines, momentum=0.9)
    for step in range(4):
        grads = gradients(ranks, step, shape)
        before = loop.stats[0].total_bytes
        results = loop.step({"w": grads})["w"]
        if lines == 64:  # travels dense: the reference has the average on every rank
            grads = [np.mean(grads, axis=0)] * ranks
        np.testing.assert_allclose(results[0], reference.step(grads), atol=2e-4)
        assert all(one.tobytes() == results[0].tobytes() for one in results)
        sent = math.prod(shape) if lines == 64 else lines * max(shape) + 64
        assert loop.stats[0].total_bytes - before == 4 * sent
        for rank, expected in zip(loop.ranks, reference.momenta, strict=True):
            momentum = rank.state_dict()["momentum"]["w"].reshape(shape)
            np.testing.assert_allclose(momentum, expected, atol=2e-4)


def test_the_average_momentum_is_that_of_one_rank_with_the_average_gradient() -> None:
    """Equal up to the choice of rows: by the average of the norms, not the norm of the average."""
    ranks, one = Loopback(config_of("dion2"), 3), Loopback(config_of("dion2"), 1)
    scale = np.linspace(1, 3, 64, dtype=np.float32)[:, np.newaxis]
    noise = gradients(3, 0, SHAPE)
    for step in range(3):
        common = gradients(1, step, SHAPE)[0] * scale
        grads = [common + 0.01 * of_rank for of_rank in noise]
        several = ranks.step({"w": grads})["w"][0]
        single = one.step({"w": [np.mean(grads, axis=0)]})["w"][0]
        np.testing.assert_allclose(several, single, atol=1e-4)


@pytest.mark.parametrize("values", ["fp16", "bf16"])
def test_half_values_are_near(values: str) -> None:
    exact, half = (Loopback(config_of(f"dion2(values={v})"), 2) for v in ("fp32", values))
    grads = gradients(2, 0, SHAPE)
    a, b = (loop.step({"w": grads})["w"][0] for loop in (exact, half))
    assert 0 < np.linalg.norm(a - b) < 0.05 * np.linalg.norm(a)
    payload = 2 * 16 * 96 + 4 * 64
    assert payload <= half.stats[0].total_bytes < 1.1 * payload


def test_singular_values_of_a_polar_factor_are_near_1() -> None:
    values = np.geomspace(0.005, 1, 40)
    basis = np.linalg.qr(gradients(1, 0, (96, 40))[0])[0]
    matrix = values[:, np.newaxis] * basis.T
    for scale in (1e-30, 1, 1e30):
        factor = polar_factor((matrix * scale).astype(np.float32, order="C"))
        found = np.linalg.svd(factor, compute_uv=False)
        assert found[-1] > 0.85
        assert found[0] < 1.15
    assert not polar_factor(np.zeros((2, 3), np.float32)).any()


def test_vectors_have_averages_and_convolutions_are_matrices() -> None:
    loop = Loopback(config_of("dion2"), 2)
    vector = [np.full(5000, rank, np.float32) for rank in (1, 3)]
    results = loop.step({"b": vector, "k": gradients(2, 0, (64, 16, 3, 3))})
    assert (results["b"][0] == 2).all()
    assert np.count_nonzero(results["k"][0].reshape(64, -1).any(axis=1)) == 16


@pytest.mark.parametrize("spec", ["dion2", "dion2(fraction=1)"])
def test_zeros_and_nan_do_no_lasting_harm(spec: str) -> None:
    check_recovers(spec, SHAPE)


@pytest.mark.parametrize("shape", [(260, 300), (300, 260)])
def test_the_same_bits_at_all_levels_and_threads(shape: tuple[int, int]) -> None:
    check_bits("dion2", shape)


def test_state_comes_back_and_fits_every_fraction() -> None:
    straight, resumed, other = (
        Loopback(config_of(spec), 2) for spec in ("dion2", "dion2", "dion2(fraction=1)")
    )
    for step in range(2):
        straight.step({"w": gradients(2, step, SHAPE)})
    take_state(straight, resumed, other)
    last = {"w": gradients(2, 2, SHAPE)}
    a, b, c = (loop.step(last)["w"] for loop in (straight, resumed, other))
    assert a[0].tobytes() == b[0].tobytes()
    assert c[0].tobytes() == c[1].tobytes()
    assert np.linalg.matrix_rank(c[0]) == 64


def test_wrong_uses_say_why() -> None:
    for spec, message in (
        ("dion2(momentum=1)", "momentum must be below 1"),
        ("residual|dion2", "its momentum is its error feedback"),
        ("dion2(fraction=0)", r"a number in \(0, 1\]"),
    ):
        with pytest.raises(SpecError, match=message):
            parse(spec)
