"""The sparse all-reduce: shares in blocks, and one choice from the sums."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from gradcomp import Config, Loopback, Pipeline, get_codec
from gradcomp.codec.arrays import FloatArray
from gradcomp.errors import ConfigError, WireError
from gradcomp.exchange.patterns import sparse_allreduce as module
from gradcomp.exchange.patterns.sparse_allreduce import BLOCK
from gradcomp.exchange.rounds import AllGather, AllToAll
from support import exchange_cases
from support.exchange_cases import check_nothing_is_lost, check_replicas

SHAPES = {"first": (96, 80), "odd": (161, 101), "small": (64, 64)}

SPECS = [
    "topk(ratio=0.02)",
    "topk(ratio=0.02,values=fp16)|rice",
    "topk(ratio=0.05,values=int8)",
    "randomk(ratio=0.05)",
    "randomblock(ratio=0.05)",
    "chunktopk(ratio=0.05)",
    "sampled_topk(ratio=0.05)",
    "threshold(tau=1.5)",
    "globaltopk(ratio=0.02)",
    "adaq(ratio=0.05)",
]


def config_of(spec: str, exchange: str = "sparse_allreduce", **others: Any) -> Config:
    return exchange_cases.config_of(spec, exchange, **others)


def gradients(ranks: int, step: int = 0) -> dict[str, list[FloatArray]]:
    return exchange_cases.gradients(ranks, step, SHAPES)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("memory", ["", "residual|", "residual(beta=0.7,gamma=0.5)|", "signum|"])
@pytest.mark.parametrize("codec", SPECS)
def test_replicas_are_identical_and_nothing_is_lost(codec: str, memory: str, ranks: int) -> None:
    loop = Loopback(config_of(memory + codec), ranks)
    if memory.startswith("residual"):
        beta, gamma = (0.7, 0.5) if "beta" in memory else (1.0, 1.0)
        check_nothing_is_lost(loop, beta, gamma, SHAPES)
    else:
        for step in range(3):
            check_replicas(loop.step(gradients(ranks, step)))
    assert loop.stats[0].sent_bytes.keys() == {"alltoall", "allgather"}


def heavy(ranks: int, numel: int = 2**16) -> list[FloatArray]:
    """Gradients of which one part is much larger than the others."""
    rng = np.random.default_rng(ranks)
    scale = np.full(numel, 0.05, np.float32)
    scale[: numel // 32] = 3
    shared = rng.standard_normal(numel, np.float32)
    return [scale * (shared + rng.standard_normal(numel, np.float32)) for _ in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_choice_is_that_of_the_largest_sums(ranks: int) -> None:
    """About as many sums as a rank sends, and none that is left out exceeds a chosen one."""
    numel, ratio = 2**16, 0.02
    grads = heavy(ranks)
    codec = get_codec(f"topk(ratio={ratio})")
    rules = [{"match": {}, "use": codec.spec}]
    (average, *_) = Loopback(config_of("topk(k=1)", rules=rules), ranks).step({"w": grads})["w"]
    sums = np.zeros(numel, np.float32)
    for grad in grads:
        codec.decode_add(codec.encode(grad), sums, 1 / ranks)
    chosen = average != 0
    np.testing.assert_array_equal(average[chosen], sums[chosen])
    assert np.abs(sums[~chosen]).max() <= np.abs(sums[chosen]).min()
    assert 0.9 < chosen.sum() / (ratio * numel) < 1.1


def test_large_gradients_in_one_place_are_no_burden() -> None:
    """sra cuts a tensor in ranges and loses accuracy here; blocks do not, and balance the load."""
    ranks, grads = 8, heavy(8)
    exact = np.mean(grads, axis=0)
    errors = {}
    for exchange in ("sra", "sparse_allreduce"):
        rules = [{"match": {}, "use": "topk(ratio=0.02)"}]
        loop = Loopback(config_of("topk(k=1)", exchange, rules=rules), ranks)
        average = loop.step({"w": grads})["w"][0]
        errors[exchange] = float(np.sum((average - exact) ** 2) / np.sum(exact**2))
    assert errors["sparse_allreduce"] < 0.2 < 0.5 < errors["sra"]
    config = config_of("topk(k=1)", rules=[{"match": {}, "use": "topk(ratio=0.02)"}])
    scatter = next(Pipeline(config, 0, ranks).round("w", grads[0]))
    assert isinstance(scatter, AllToAll)
    assert max(scatter.splits) < 1.3 * np.mean(scatter.splits)


def test_volume_does_not_grow_with_the_ranks() -> None:
    sent = {}
    rules = [{"match": {}, "use": "topk(ratio=0.02)"}]
    for ranks in (2, 8, 16):
        loop = Loopback(config_of("topk(k=1)", rules=rules), ranks)
        loop.step({"w": heavy(ranks)})
        total = sum(one.sent_bytes["allgather"] for one in loop.stats)
        sent[ranks] = total + loop.stats[0].sent_bytes["alltoall"]
    assert sent[16] < 2.5 * sent[2]  # gather: 8 times


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("numel", [1, BLOCK, 1000, 5 * BLOCK * 7])
def test_dealing(numel: int, ranks: int) -> None:
    flat = np.arange(1, numel + 1, dtype=np.float32)
    shares = module._dealt(flat, ranks)
    assert shares.shape[0] == ranks
    assert shares.shape[1] % BLOCK == 0
    np.testing.assert_array_equal(module._collected(shares, numel), flat)
    loads = np.count_nonzero(shares, axis=1)
    assert loads.max() - loads.min() <= BLOCK


def test_not_finite_is_chosen_and_forgotten() -> None:
    grads = gradients(3)
    grads["odd"][1][5, 7] = np.nan
    grads["odd"][2][9, 9] = np.inf
    loop = Loopback(config_of("residual|topk(ratio=0.02)"), 3)
    average = loop.step(grads)["odd"][0]
    assert np.isnan(average[5, 7])
    assert average[9, 9] == np.inf
    assert np.isfinite(average).sum() == average.size - 2
    for rank in loop.ranks:
        assert all(np.isfinite(array).all() for array in rank.state_dict()["residual"].values())
    assert np.isfinite(loop.step(gradients(3, 1))["odd"][0]).all()


@pytest.mark.parametrize("values", [0.0, 3.0])
def test_gradients_that_are_all_equal(values: float) -> None:
    grads = {"w": [np.full((128, 128), values)] * 3}
    average = Loopback(config_of("topk(ratio=0.02)"), 3).step(grads)["w"][0]
    assert set(np.unique(average)) <= {0.0, values}
    assert np.count_nonzero(average) == (round(0.02 * 128 * 128) if values else 0)


def test_buckets_have_one_way_to_send_values() -> None:
    rules = [{"match": {"name": "odd"}, "use": "topk(ratio=0.02,values=fp16)"}]
    config = config_of("sampled_topk(ratio=0.02)", rules=rules)
    pipeline = Pipeline(config, 0, 2)
    buckets = pipeline.buckets(pipeline.resolve_all(SHAPES))
    assert sorted(map(sorted, buckets)) == [["first", "small"], ["odd"]]


@pytest.mark.parametrize("spec", ["int8", "sign", "fp16", "polar(rate=0.5)", "sketch(ratio=0.1)"])
def test_codecs_that_send_all_elements_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="sends all elements, and sparse_allreduce adds up"):
        config_of(spec)


@pytest.mark.parametrize(
    ("phase", "says"),
    [
        (0, "the frames of rank 1 for 'w'"),
        (1, "rank 1's description of 'w'"),
        (2, "rank 1's sums of 'w'"),
    ],
)
def test_a_damaged_frame_is_named(phase: int, says: str) -> None:
    config = config_of("topk(ratio=0.1)")
    one = Pipeline(config, 0, 2).round("w", np.ones((128, 128), np.float32))
    request = one.send(None)
    for current in range(3):
        if isinstance(request, AllToAll):
            data = request.data[: request.splits[0]]
        else:
            assert isinstance(request, AllGather)
            data = request.frame
        if current == phase:
            with pytest.raises(WireError, match=says):
                one.send([data, data[:-1]])
            return
        request = one.send([data, data])


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (0, np.nan, "the count nan"),
        (0, np.inf, "the count inf"),
        (0, 8193.0, "[0, 8192]"),
        (1, -1.0, "the count -1.0"),
        (1, 1.5, "the count 1.5"),
        (1, 1e30, "[0, 4096]"),
        (2, np.nan, "NaN or not in descending order"),
        (9, -1.0, "negative"),
        (65, np.inf, "descending order"),
    ],
)
def test_a_description_with_wrong_numbers(at: int, value: float, text: str) -> None:
    pipeline = Pipeline(config_of("topk(ratio=0.02)"), 0, 2)
    round_ = pipeline.round("w", np.ones((64, 128), np.float32))
    scatter = next(round_)
    share = scatter.data[: scatter.splits[0]]
    choice = round_.send([share, share])
    description = get_codec("identity").decode(choice.frame)
    description[at] = value
    damaged = get_codec("identity").encode(description)
    with pytest.raises(WireError, match=re.escape(text)) as raised:
        round_.send([choice.frame, damaged])
    assert "rank 1's description of 'w'" in str(raised.value)
