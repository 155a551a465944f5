"""States of ranks in jobs that grow and shrink."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import Config, Loopback, Pipeline
from gradcomp.adapter_api import (
    common_state,
    moved,
    pack_state,
    placed,
    resized,
    take_common_state,
    unpack_state,
)
from gradcomp.codec.arrays import FloatArray
from support.pipelines import configured, rules_of

SHAPES = {"top": (80, 64), "low": (64, 80), "some": (70, 70), "basis": (64, 128), "bias": (9,)}
SPECS = {
    "top": "residual|topk(ratio=0.02)",
    "low": "powersgd(rank=2,start_step=1)",
    "some": "residual|randomk(ratio=0.1)",
    "basis": "residual|adaptive(rate=0.5,preset=basis)",
}


def config() -> Config:
    return configured("identity", rules=rules_of(SPECS, "{}"))


def gradients(step: int, ranks: int) -> dict[str, list[FloatArray]]:
    return {
        name: [
            np.random.default_rng([step, rank, len(name)]).normal(size=shape).astype(np.float32)
            for rank in range(ranks)
        ]
        for name, shape in SHAPES.items()
    }


def trained(ranks: int, of: Config | None = None, steps: int = 4) -> Loopback:
    loop = Loopback(of or config(), ranks)
    for step in range(steps):
        loop.step(gradients(step, ranks))
    return loop


def mean_residual(loop: Loopback, name: str) -> FloatArray:
    zeros = np.zeros(int(np.prod(SHAPES[name])), np.float32)
    own = [rank.state_dict()["residual"].get(name, zeros) for rank in loop.ranks]
    return np.mean(own, axis=0, dtype=np.float64)


def changed(before: Loopback, stays: list[int], size: int) -> Loopback:
    """A job of another size: the ranks that stay come first, and rank 0 shares its state."""
    after = Loopback(config(), size)
    for number, rank in enumerate(stays):
        state = resized(before.ranks[rank].state_dict(), number, size)
        after.ranks[number].load_state_dict(state)
    common = unpack_state(pack_state(common_state(after.ranks[0])))
    for rank in after.ranks:
        take_common_state(rank, common, SHAPES)
    return after


@pytest.mark.parametrize("size", [2, 3, 5])
def test_growth_keeps_the_mean_of_residuals(size: int) -> None:
    before = trained(2)
    after = changed(before, [0, 1], size)
    for name in ("top", "some", "basis"):
        np.testing.assert_allclose(
            mean_residual(after, name), mean_residual(before, name), atol=1e-6
        )


def test_ranks_that_go_take_their_residuals_along() -> None:
    before = trained(4)
    after = changed(before, [1, 3], 2)
    states = [before.ranks[rank].state_dict()["residual"]["top"] for rank in (1, 3)]
    np.testing.assert_allclose(mean_residual(after, "top"), np.sum(states, axis=0) / 4, atol=1e-6)


@pytest.mark.parametrize(("stays", "size"), [([0, 1], 3), ([1], 1), ([1, 0], 2), ([1], 3)])
def test_a_changed_job_goes_on_with_equal_replicas(stays: list[int], size: int) -> None:
    after = changed(trained(2), stays, size)
    texts = [rank.comparison.text().tobytes() for rank in after.ranks]
    assert texts[1:] == texts[:-1]  # counters, factors, bases and names of residuals
    for step in range(4, 8):
        for of_ranks in after.step(gradients(step, size)).values():
            assert all(one.tobytes() == of_ranks[0].tobytes() for one in of_ranks)


def test_survivors_keep_the_starting_points_of_their_encoders() -> None:
    before = trained(2)
    after = changed(before, [1], 3)
    kept = before.ranks[1].state_dict()["carried"]["basis"]
    assert kept.any()
    np.testing.assert_array_equal(after.ranks[0].state_dict()["carried"]["basis"], kept)
    assert not after.ranks[1].state_dict()["carried"]


def test_an_equal_size_changes_nothing() -> None:
    before = trained(2)
    after = changed(before, [0, 1], 2)
    for step in range(4, 6):
        one, other = (loop.step(gradients(step, 2)) for loop in (before, after))
        for name in SHAPES:
            assert one[name][0].tobytes() == other[name][0].tobytes()


def test_momenta_of_averages_are_common_and_others_are_not() -> None:
    """DGC applies the momentum of a tensor that travels dense to averages: it is equal on all ranks."""
    rules = [{"match": {"name": "bias"}, "use": "momentum_correction|identity"}]
    of = configured("dgc(ratio=0.05,warmup_epochs=0)", rules=rules)
    before = trained(2, of)
    after = Pipeline(of, 1, 2)
    take_common_state(after, common_state(before.ranks[0]), SHAPES)
    momenta = after.state_dict()["momentum"]
    assert momenta["bias"].any()
    assert not momenta["top"].any()


def test_the_epoch_is_common() -> None:
    first, second = Pipeline(config(), 0, 2), Pipeline(config(), 1, 2)
    first.set_epoch(3)
    take_common_state(second, common_state(first), SHAPES)
    assert second.epoch == 3


def test_a_process_takes_all_that_is_its_own_along() -> None:
    before = trained(3).ranks[1]
    before.set_epoch(2)
    after = moved(before, placed(before.state_dict(), 0, 2), before.epoch)
    assert (after.rank, after.world_size, after.epoch) == (0, 2, 2)
    assert after.stats is before.stats
    for name, residual in before.state_dict()["residual"].items():
        assert after.state_dict()["residual"][name].tobytes() == residual.tobytes()
