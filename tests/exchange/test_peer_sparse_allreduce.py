"""The sparse all-reduce of ranks that send messages from device to device, by its rounds on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcomp import Config, Pipeline
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.codec import Codec
from gradcomp.codec.devices import Device
from gradcomp.codec.shares import SHARE_BLOCK, Shares
from gradcomp.errors import WireError
from gradcomp.exchange.patterns import peer_sparse_allreduce as module
from gradcomp.exchange.patterns.peer_sparse_allreduce import PeerSparseAllReduce
from gradcomp.exchange.rounds import AllToAll
from gradcomp.runtime.loopback import run_rounds
from support.core_device import CoreDevice
from support.exchange_cases import config_of

SHAPE = (128, 160)
NUMEL = 128 * 160


class Peers(CoreDevice):
    """All ranks have agreed on messages from such devices; the gradients are on the host."""

    def to_peers(self, codec: Codec) -> Any:
        return self


def ranks_of(config: Config, ranks: int, device: Device | None = None) -> list[Pipeline]:
    pipelines = [Pipeline(config, rank, ranks) for rank in range(ranks)]
    for pipeline in pipelines:
        pipeline.begin_peer_messages(device or Peers())
        assert type(pipeline.resolve("w", SHAPE).aggregator) is PeerSparseAllReduce
    return pipelines


def average(pipelines: list[Pipeline], grads: list[FloatArray]) -> list[FloatArray]:
    rounds = [one.round("w", grad.copy()) for one, grad in zip(pipelines, grads, strict=True)]
    return [one.reshape(-1) for one in run_rounds(rounds)]


def owners(ranks: int, numel: int = NUMEL) -> np.ndarray:
    """The owner of each element, as docs/exchange.md has it."""
    block = np.arange(numel) // SHARE_BLOCK
    owned: np.ndarray = (block + block // ranks) % ranks
    return owned


def whole(step: int, ranks: int, *, crowded: bool = False) -> list[FloatArray]:
    """Whole numbers; if crowded, those of each rank are larger in the share of another rank."""
    grads = []
    for rank in range(ranks):
        rng = np.random.default_rng([step, rank])
        grad = rng.integers(-9, 10, SHAPE).astype(np.float32)
        if crowded:
            grad *= np.where(owners(ranks).reshape(SHAPE) == (rank + 1) % ranks, 1000, 1)
        grads.append(grad.astype(np.float32))
    return grads


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("memory", ["residual|", "momentum_correction(momentum=0,masking=false)|"])
def test_nothing_is_lost(memory: str, crowded: bool) -> None:
    """Sums of whole numbers are exact: the corrected gradients are the averages and the residuals."""
    ranks = 4
    pipelines = ranks_of(config_of(f"{memory}topk(ratio=0.1)", "sparse_allreduce"), ranks)
    shares = Shares(NUMEL, 2048, ranks)
    before = np.zeros(NUMEL)
    for step in range(3):
        grads = whole(step, ranks, crowded=crowded)
        found = average(pipelines, grads)
        assert all(np.array_equal(one, found[0]) for one in found)
        states = [one.state_dict()["residual"]["w"].reshape(-1) for one in pipelines]
        kept = np.sum(states, axis=0, dtype=np.float64)
        corrected = before + np.sum(grads, axis=0, dtype=np.float64).reshape(-1)
        np.testing.assert_array_equal(ranks * found[0].astype(np.float64) + kept, corrected)
        assert 0.9 * 2048 <= np.count_nonzero(found[0]) <= ranks * shares.chosen
        before = kept
    scattered = next(pipelines[0].round("w", whole(3, ranks, crowded=crowded)[0]))
    assert isinstance(scattered, AllToAll)
    assert crowded is (max(scattered.splits[1:]) > 4 * shares.slots)


def test_averages_are_the_largest_sums_of_each_share() -> None:
    ranks = 4
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal(SHAPE, np.float32) for _ in range(ranks)]
    config = config_of("topk(k=1)", "sparse_allreduce")
    rules = [{"match": {}, "use": "topk(ratio=0.1)"}]
    config = config_of("topk(k=1)", "sparse_allreduce", rules=rules)
    found = average(ranks_of(config, ranks), grads)[0]
    sums = np.zeros(NUMEL, np.float32)
    for grad in grads:
        flat = grad.reshape(-1)
        sent = np.argsort(-np.abs(flat), kind="stable")[:2048]
        sums[sent] += np.float32(0.25) * flat[sent]
    for rank in range(ranks):
        of_share = np.flatnonzero(owners(ranks) == rank)
        chosen = of_share[np.argsort(-np.abs(sums[of_share]), kind="stable")[:512]]
        expected = np.zeros(NUMEL, np.float32)
        expected[chosen] = sums[chosen]
        np.testing.assert_array_equal(found[of_share], expected[of_share])


@pytest.mark.parametrize("ranks", [3, 8])
@pytest.mark.parametrize("begin", [0, 17, 1000])
def test_large_rows_and_columns_are_in_all_shares(ranks: int, begin: int) -> None:
    """No share has more than twice its part of them."""
    cols = SHARE_BLOCK * ranks
    shares = Shares(cols * 200, 1, ranks)
    for large in (np.arange(begin, begin + cols), np.arange(begin % cols, shares.numel, cols)):
        flat = np.zeros(shares.numel, np.float32)
        flat[large] = 1
        dealt = module._dealt(flat, shares)
        np.testing.assert_array_equal(module._collected(dealt, shares), flat)
        assert np.count_nonzero(dealt, axis=1).max() <= 2 * -(-large.size // ranks)
        np.testing.assert_array_equal(
            np.count_nonzero(dealt, axis=1),
            np.bincount(owners(ranks, shares.numel)[large], minlength=ranks),
        )


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("crowded", [False, True])
def test_not_finite_is_in_one_average_and_no_residual(value: float, crowded: bool) -> None:
    """Also where it is the last of a share with more elements than slots."""
    ranks = 4
    pipelines = ranks_of(config_of("residual|topk(ratio=0.1)", "sparse_allreduce"), ranks)
    grads = whole(0, ranks, crowded=crowded)
    place = np.flatnonzero(owners(ranks) == 1)[-1]
    grads[0].reshape(-1)[place] = value
    found = average(pipelines, grads)[0]
    assert np.count_nonzero(~np.isfinite(found)) == 1
    assert crowded or not np.isfinite(found[place])
    for pipeline in pipelines:
        assert np.isfinite(pipeline.state_dict()["residual"]["w"]).all()
    assert np.isfinite(average(pipelines, whole(1, ranks, crowded=crowded))[0]).all()


def test_messages_do_not_grow_with_the_ranks() -> None:
    """Those that a rank sends and those that it gets; of a gather's, n - 1 times as many come."""
    for ranks in (8, 64, 256):
        shares = Shares(2**20, 10486, ranks)
        assert ranks * shares.slots <= shares.kept + 65 * ranks
        assert shares.kept <= ranks * shares.chosen < shares.kept + ranks
        assert shares.chosen <= shares.size


def test_few_elements_are_gathered() -> None:
    config = config_of("topk(ratio=0.1)", "sparse_allreduce")
    first = next(ranks_of(config, 4)[0].round("w", np.ones(SHAPE, np.float32)))
    assert isinstance(first, AllToAll)
    few = next(ranks_of(config, 6)[0].round("w", np.ones(SHAPE, np.float32)))
    assert not isinstance(few, AllToAll)


@pytest.mark.parametrize(
    ("phase", "says"), [(0, "the frames of rank 1 for 'w'"), (1, "rank 1's sums of 'w'")]
)
def test_a_damaged_frame_is_named(phase: int, says: str) -> None:
    round_ = ranks_of(config_of("topk(ratio=0.1)", "sparse_allreduce"), 2)[0].round(
        "w", np.ones(SHAPE, np.float32)
    )
    request: Any = round_.send(None)
    data = request.data[: request.splits[0]]
    if phase:
        data = round_.send([data, data]).frame
    with pytest.raises(WireError, match=says):
        round_.send([data, data[:-1]])


def test_sums_follow_the_gradients_as_with_the_sparse_allreduce_of_the_host() -> None:
    """In the owner's own share residuals are largest: what is chosen there must not wait for slots."""
    ranks, steps = 4, 20
    config = config_of("residual|topk(ratio=0.02)", "sparse_allreduce")
    mean = np.random.default_rng(0).standard_normal(SHAPE)
    errors = []
    for pipelines in (
        ranks_of(config, ranks),
        [Pipeline(config, rank, ranks) for rank in range(ranks)],
    ):
        wanted, found = np.zeros(NUMEL), np.zeros(NUMEL)
        for step in range(steps):
            noise = np.random.default_rng(step).standard_normal((ranks, *SHAPE))
            grads = list((mean + noise).astype(np.float32))
            wanted += np.mean(grads, axis=0).reshape(-1)
            found += average(pipelines, grads)[0]
        errors.append(float(np.sum((found - wanted) ** 2) / np.sum(wanted**2)))
    assert errors[0] < 1.03 * errors[1]
