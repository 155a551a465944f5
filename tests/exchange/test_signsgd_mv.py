"""signSGD with majority vote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcomp import Loopback, SpecError
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.spec import parse
from support.gradients import one_stream
from support.pipelines import config_of
from support.reference import reference


def loop_of(spec: str, ranks: int, seed: int = 0) -> Loopback:
    return Loopback(config_of(spec, seed), ranks)


def step(loop: Loopback, grads: Any, name: str = "w") -> FloatArray:
    averages = loop.step({name: grads})[name]
    assert all(average.tobytes() == averages[0].tobytes() for average in averages)
    return averages[0]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("shape", [(1,), (3,), (70, 90), (2, 3, 5)])
def test_the_majority_decides(shape: tuple[int, ...], ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    grads = [rng.standard_normal(shape, np.float32) for _ in range(ranks)]
    votes = np.sum([np.sign(grad) for grad in grads], axis=0)
    average = step(loop_of("signsgd_mv", ranks), grads)
    assert average.shape == shape
    assert set(np.unique(average)) <= {-1, 1}
    decided = votes != 0
    np.testing.assert_array_equal(average[decided], np.sign(votes)[decided])


def test_ties_and_zeros() -> None:
    shape = (100, 100)
    up, zero = np.ones(shape, np.float32), np.zeros(shape, np.float32)
    assert (step(loop_of("signsgd_mv(ties=plus)", 2), [up, -up]) == 1).all()
    assert (step(loop_of("signsgd_mv(ties=plus)", 2), [-up, zero]) == 1).all()
    assert (step(loop_of("signsgd_mv(ties=plus)", 3), [zero] * 3) == 1).all()
    assert (step(loop_of("signsgd_mv(ties=plus)", 3), [-zero] * 3) == 1).all()
    for grads in ([up, -up], [zero] * 2, [zero] * 3):
        loop = loop_of("signsgd_mv", len(grads))
        one, other = step(loop, grads), step(loop, grads)
        for average in (one, other):
            assert abs(average.mean()) < 0.05  # five standard deviations
        assert 0.4 < (one == other).mean() < 0.6, "each step draws again"
        assert not np.array_equal(one, step(loop_of("signsgd_mv", len(grads), seed=1), grads))
    # A rank's zeros decide ties of the others by chance, and nothing else.
    average = step(loop_of("signsgd_mv", 3), [up, up, zero])
    assert (average == 1).all()


def test_signum_is_the_memory_of_the_paper() -> None:
    loop = loop_of("signum(momentum=0.5)|signsgd_mv", 3)
    rng = np.random.default_rng(0)
    momenta = [np.zeros((40, 30), np.float32) for _ in range(3)]
    for number in range(4):
        grads = [rng.standard_normal((40, 30), np.float32) for _ in range(3)]
        old, new = (0.5, 0.5) if number else (0.0, 1.0)
        momenta = [
            np.float32(old) * m + np.float32(new) * g for m, g in zip(momenta, grads, strict=True)
        ]
        votes = np.sum([np.sign(m) for m in momenta], axis=0)
        np.testing.assert_array_equal(step(loop, grads), np.sign(votes))


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_residual_takes_off_what_the_rank_has_voted(ranks: int) -> None:
    """GRACE's memory: the vote counts as 1, whatever the majority says."""
    rng = np.random.default_rng(0)
    loop = loop_of("residual(beta=0.9,gamma=50)|signsgd_mv", ranks)
    residuals = np.zeros((ranks, 40, 30), np.float32)
    for _ in range(6):
        grads = rng.normal(0.01, 0.02, size=residuals.shape).astype(np.float32)
        corrected = np.float32(0.9) * residuals + np.float32(50) * grads
        signs = np.sign(corrected)
        average = step(loop, list(grads))
        votes = signs.sum(axis=0)
        np.testing.assert_array_equal(average[votes != 0], np.sign(votes[votes != 0]))
        residuals = corrected - signs
        for rank, residual in enumerate(residuals):
            found = loop.ranks[rank].state_dict()["residual"]["w"]
            np.testing.assert_allclose(found, residual.reshape(-1), atol=1e-5)


def test_a_memory_before_the_vote_gives_the_data_of_grace() -> None:
    """Zeros and ties are +1 there."""
    about, arrays = reference("grace-signsgd-02")
    loop = Loopback(config_of("residual|signsgd_mv(ties=plus)"), about["world_size"])
    for number in range(about["steps"]):
        averages = loop.step({name: list(arrays[f"grad.{name}"][number]) for name in "wb"})
        for name, found in averages.items():
            np.testing.assert_array_equal(found[0], arrays[f"out.{name}"][number])
            for rank, theirs in enumerate(arrays[f"residual.{name}"][number]):
                ours = loop.ranks[rank].state_dict()["residual"][name]
                np.testing.assert_array_equal(ours, theirs.reshape(-1))


@pytest.mark.parametrize("memory", ["ef21", "momentum_correction"])
def test_no_other_error_feedback(memory: str) -> None:
    with pytest.raises(SpecError):
        parse(f"{memory}|signsgd_mv")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_by_all_ranks_and_not_kept(bad: float) -> None:
    loop = loop_of("signum|signsgd_mv", 3)
    grads = [np.ones((64, 64), np.float32) for _ in range(3)]
    grads[1][5, 5] = bad
    assert np.isnan(step(loop, grads)[5, 5])
    grads[1][5, 5] = 1
    assert (step(loop, grads) == 1).all()


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_a_bit_per_element_each_way(ranks: int) -> None:
    loop = loop_of("signsgd_mv", ranks)
    numel = 512 * 512
    step(loop, [np.ones((512, 512), np.float32)] * ranks)
    for stats in loop.stats:
        assert 1 <= 8 * stats.sent_bytes["alltoall"] / numel < 1.05
        assert 1 <= 8 * ranks * stats.sent_bytes["allgather"] / numel < 1.05


def test_tensors_travel_together_and_vote_alike() -> None:
    grads = one_stream({"a": (64, 65), "b": (7,), "c": (30, 31)}, 3, seed=3)
    together = loop_of("signsgd_mv", 3).step(grads)
    for name, one in grads.items():
        np.testing.assert_array_equal(together[name][0], step(loop_of("signsgd_mv", 3), one, name))


def test_it_descends() -> None:
    """A squared distance, with noise and one rank that always votes for the contrary."""
    target = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    at = np.zeros_like(target)
    loop = loop_of("signsgd_mv", 5)
    rng = np.random.default_rng(1)
    for number in range(200):
        grads = [at - target + 0.1 * rng.standard_normal(at.shape) for _ in range(4)]
        at -= np.float32(0.05 * 0.98**number) * step(loop, [*grads, target - at])
    assert np.abs(at - target).mean() < 0.05
