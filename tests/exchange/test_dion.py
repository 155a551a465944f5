"""Dion: the formulas of algorithm 1, its bytes, its state; see docs/algorithms/dion.md."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradcomp import ConfigError, Loopback, SpecError
from gradcomp.codec.spec import parse
from support.dion import Reference
from support.pipelines import config_of
from support.step_laws import check_bits, check_recovers, gradients, take_state

SHAPE = (96, 64)


@pytest.mark.parametrize("orthogonalization", ["gram_schmidt", "qr", "cholesky"])
@pytest.mark.parametrize(("fraction", "rank"), [(0.25, 16), (0.1, 7), (1.0, 64)])
@pytest.mark.parametrize(("ranks", "shape"), [(1, SHAPE), (2, SHAPE), (3, SHAPE), (2, (64, 96))])
def test_steps_are_the_papers(
    ranks: int, shape: tuple[int, int], fraction: float, rank: int, orthogonalization: str
) -> None:
    """Of a wide matrix the transpose is taken, as in the authors' code."""
    spec = f"dion(rank_fraction={fraction},momentum=0.9,orthogonalization={orthogonalization})"
    loop = Loopback(config_of(spec), ranks)
    reference = Reference(ranks, "w", shape, rank, momentum=0.9)
    for step in range(4):
        grads = gradients(ranks, step, shape)
        before = loop.stats[0].total_bytes
        results = loop.step({"w": grads})["w"]
        if rank == 64:  # travels dense: the reference has the average on every rank
            grads = [np.mean(grads, axis=0)] * ranks
        np.testing.assert_allclose(results[0], reference.step(grads), atol=2e-4)
        assert all(one.tobytes() == results[0].tobytes() for one in results)
        sent = math.prod(shape) if rank == 64 else rank * sum(shape)
        assert loop.stats[0].total_bytes - before == 4 * sent
        momenta = [one.state_dict()["momentum"]["w"] for one in loop.ranks]
        for mine, expected in zip(momenta, reference.momenta, strict=True):
            np.testing.assert_allclose(mine.reshape(shape), expected, atol=2e-4)


@pytest.mark.parametrize(("values", "item"), [("fp16", 2), ("bf16", 2)])
def test_half_values_are_near(values: str, item: int) -> None:
    exact = Loopback(config_of("dion"), 2)
    half = Loopback(config_of(f"dion(values={values})"), 2)
    grads = gradients(2, 0, SHAPE)
    a, b = (loop.step({"w": grads})["w"][0] for loop in (exact, half))
    assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(a)
    payload = item * 16 * sum(SHAPE)
    assert payload <= half.stats[0].total_bytes < 1.1 * payload


def test_all_singular_values_are_equal_after_some_steps_of_one_gradient() -> None:
    loop = Loopback(config_of("dion(rank_fraction=0.125)"), 2)
    left, right = (
        np.linalg.qr(gradients(1, 0, SHAPE)[0])[0],
        np.linalg.qr(gradients(1, 1, SHAPE)[0].T)[0],
    )
    scaled = left[:, :8] * 2.0 ** np.arange(8) @ right[:, :8].T
    grads = [scaled.astype(np.float32)] * 2
    for _ in range(60):
        step = loop.step({"w": grads})["w"][0]
    values = np.linalg.svd(step, compute_uv=False)
    np.testing.assert_allclose(values[:8], math.sqrt(96 / 64), rtol=0.05)
    assert values[8] < 1e-4


def test_vectors_have_averages_and_convolutions_are_matrices() -> None:
    loop = Loopback(config_of("dion"), 2)
    vector = [np.full(5000, rank, np.float32) for rank in (1, 3)]
    kernel = gradients(2, 0, (64, 16, 3, 3))
    results = loop.step({"b": vector, "k": kernel})
    assert (results["b"][0] == 2).all()
    flat = results["k"][0].reshape(64, -1)
    assert np.linalg.matrix_rank(flat) == 16


def test_zeros_and_nan_do_no_lasting_harm() -> None:
    check_recovers("dion", SHAPE)


@pytest.mark.parametrize("values", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    "spec", ["dion(", "dion(orthogonalization=gram_schmidt,", "dion(rank_fraction=1,"]
)
@pytest.mark.parametrize("shape", [SHAPE, SHAPE[::-1]])
def test_no_step_along_directions_without_momentum(
    shape: tuple[int, int], spec: str, values: str
) -> None:
    """Of a momentum of rank 3, with rows and columns of zeros; r is 16, or 64."""
    loop = Loopback(config_of(f"{spec}values={values})"), 2)
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((n, 3)) for n in shape)
    left[5:], right[:40] = 0, 0
    for _ in range(10):  # the momentum keeps its rank, and shrinks in no direction
        noise = rng.standard_normal((2, 3, 3)) / 4
        grads = [(left @ (np.eye(3) + each) @ right.T).astype(np.float32) for each in noise]
        step = loop.step({"w": grads})["w"][0]
        sizes = np.linalg.svd(step.astype(np.float64), compute_uv=False)
        assert sizes[3] < 1e-3 * sizes[0]
        assert np.abs(step[5:]).max() < 1e-6
        assert np.abs(step[:, :40]).max() < 1e-6
    np.testing.assert_allclose(sizes[:3], math.sqrt(shape[0] / shape[1]), rtol=0.1)


def test_a_branch_stops_when_its_momentum_has_faded_away_and_starts_again() -> None:
    loop = Loopback(config_of("dion(momentum=0)"), 2)
    zeros = [np.zeros(SHAPE, np.float32)] * 2
    small = [1e-36 * grad for grad in gradients(2, 0, SHAPE)]
    first = loop.step({"w": small})["w"][0]
    assert np.linalg.matrix_rank(first) == 16
    for _ in range(40):
        last = loop.step({"w": zeros})["w"][0]
    assert not last.any()
    again = loop.step({"w": gradients(2, 1, SHAPE)})["w"][0]
    assert np.linalg.matrix_rank(again) == 16


def test_the_same_bits_at_all_levels_and_threads() -> None:
    check_bits("dion", (300, 260))


def test_state_comes_back_and_momenta_outlive_a_change_of_rank() -> None:
    straight, resumed, other = (
        Loopback(config_of(spec), 2) for spec in ("dion", "dion", "dion(rank_fraction=0.5)")
    )
    for step in range(2):
        straight.step({"w": gradients(2, step, SHAPE)})
    take_state(straight, resumed, other)
    a, b, c = (
        loop.step({"w": gradients(2, 2, SHAPE)})["w"][0] for loop in (straight, resumed, other)
    )
    assert a.tobytes() == b.tobytes()
    assert np.linalg.matrix_rank(c) == 32


def test_ranks_agree_when_a_later_fraction_sends_matrices_dense() -> None:
    """Momenta that differ by rank become their average."""
    thin, dense = Loopback(config_of("dion"), 2), Loopback(config_of("dion(rank_fraction=1)"), 2)
    thin.step({"w": gradients(2, 0, SHAPE)})
    for one, of in zip(thin.ranks, dense.ranks, strict=True):
        of.load_state_dict(one.state_dict())
    results = dense.step({"w": gradients(2, 1, SHAPE)})["w"]
    assert results[0].tobytes() == results[1].tobytes()


def test_wrong_uses_say_why() -> None:
    for spec, message in (
        ("dion(momentum=1)", "momentum must be below 1"),
        ("residual|dion", "its momentum is its error feedback"),
        ("dion(rank_fraction=0)", r"a number in \(0, 1\]"),
    ):
        with pytest.raises(SpecError, match=message):
            parse(spec)
    with pytest.raises(ConfigError, match="do not scale with the loss"):
        Loopback(config_of("dion"), 2).ranks[0].set_loss_scale(2.0)
