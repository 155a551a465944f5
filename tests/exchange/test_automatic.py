"""The pattern of `exchange: auto`, by spec and number of ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from exchange_bytes import received
from gradcomp import Loopback, Pipeline, get_codec
from gradcomp.codec.codec import Codec
from gradcomp.codec.spec import parse, stages
from gradcomp.exchange.automatic import NUMEL, spec_link_bytes
from gradcomp.exchange.averaging import Averaging
from gradcomp.exchange.link import dense_link_bytes
from gradcomp.exchange.patterns.gather import Gather
from gradcomp.exchange.patterns.peer_sparse_allreduce import PeerSparseAllReduce
from gradcomp.exchange.patterns.sparse_allreduce import SparseAllReduce
from gradcomp.exchange.patterns.sra import Sra
from gradcomp.exchange.select import choices_by_ranks, exchange_choice, exchange_pattern
from gradcomp.runtime.loopback import run_rounds
from gradcomp.runtime.membership import resized
from support.core_device import CoreDevice
from support.exchange_cases import config_of, gradients

GATHERED = [
    row.example
    for row in stages()
    if row.kind == "codec"
    and row.name != "identity"
    and "summable" not in get_codec(row.example).caps
]
MANY = (2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64, 256, 257, 1024)


@pytest.mark.parametrize(
    ("spec", "choices"),
    [
        ("bf16", [(2, "gather"), (4, "sra")]),
        ("int8", [(2, "gather"), (6, "sra")]),
        ("int4", [(2, "gather"), (8, "sra")]),
        ("residual|sign", [(2, "gather"), (8, "sra")]),
        ("adaptive", [(2, "gather"), (8, "sra")]),
        ("adaptive(error=0.1)", [(2, "gather"), (8, "sra")]),
        ("adaptive(error=0.1,max_rate=0.5)", [(2, "gather"), (8, "sra")]),
        ("polar_ec(rate=1)", [(2, "gather"), (8, "sra")]),
        ("topk(ratio=0.01)", [(2, "gather"), (8, "sparse_allreduce"), (257, "sra")]),
        ("globaltopk(ratio=0.01)", [(2, "gather"), (8, "sparse_allreduce"), (257, "sra")]),
        (
            "randomk(ratio=0.01,values=bf16)",
            [(2, "gather"), (13, "sparse_allreduce"), (257, "gather")],
        ),
        ("topk(k=1)", [(2, "gather")]),
        ("adaptive(preset=basis)", [(2, "gather")]),
        ("fp16", [(2, "reduce")]),
        ("identity", [(2, "dense")]),
        ("powersgd", [(2, "algorithm")]),
    ],
)
def test_the_pattern_of_a_spec(spec: str, choices: list[tuple[int, str]]) -> None:
    found = choices_by_ranks(parse(spec))
    assert [(ranks, choice.pattern) for ranks, choice in found] == choices
    for ranks, pattern in choices:
        assert exchange_pattern(parse(spec), "auto", ranks) == pattern


@pytest.mark.parametrize("ranks", MANY)
@pytest.mark.parametrize("codec", GATHERED)
def test_a_gather_is_taken_while_it_costs_little(codec: str, ranks: int) -> None:
    spec = parse(codec)
    choice = exchange_choice(spec, "auto", ranks)
    assert choice.reason
    gather = spec_link_bytes(spec, "gather", ranks)
    taken = spec_link_bytes(spec, choice.pattern, ranks)
    dense = dense_link_bytes(4 * NUMEL, ranks)
    if choice.pattern != "gather":
        assert ranks > 2
        assert taken < gather
        assert taken <= 0.26 * gather or gather > 0.75 * dense
    if ranks > 2 and "whole_bucket" not in get_codec(codec).caps:
        assert taken < 1.15 * dense, "no codec passes many more bytes than no compression"


class WithPeers(CoreDevice):
    """A device that sends what kernels do to its peers."""

    def to_peers(self, codec: Codec) -> Any:
        sends = codec.name in ("topk", "int8", "fp16") and "values=int8" not in codec.spec
        return self if sends else None


@pytest.mark.parametrize(
    ("codec", "patterns"),
    [
        (
            "topk(ratio=0.01)",
            {7: "gather", 8: "sparse_allreduce", 256: "sparse_allreduce", 257: "sra"},
        ),
        ("topk(ratio=0.001)", {10: "gather", 11: "sparse_allreduce", 257: "gather"}),
        ("topk(ratio=0.1,values=fp16)", {2: "gather", 8: "sparse_allreduce"}),
        ("topk(ratio=0.01,values=int8)", {8: "gather", 16: "sparse_allreduce"}),
        ("threshold", {2: "gather", 3: "sparse_allreduce"}),
        ("int8", {2: "gather", 6: "sra"}),
        ("fp16", {8: "reduce"}),
    ],
)
def test_the_pattern_from_device_to_device(codec: str, patterns: dict[int, str]) -> None:
    """Where buckets are too small for sparse_allreduce, a gather is taken while it costs less than no compression:
    the sra of a sparse codec keeps far less of a gradient.

    Codecs that the device does not send to its peers travel through the hosts, as ever.
    """
    for ranks, pattern in patterns.items():
        assert exchange_pattern(parse(codec), "auto", ranks, peer_device=WithPeers()) == pattern


@pytest.mark.parametrize("codec", GATHERED)
def test_bytes_do_not_grow_with_the_ranks(codec: str) -> None:
    """From 8 ranks to 256 they are at most doubled, where a gather has 36 times as many."""
    spec = parse(codec)

    def taken(ranks: int) -> float:
        pattern = exchange_pattern(spec, "auto", ranks)
        return spec_link_bytes(spec, pattern, ranks)

    assert taken(256) < 37 * taken(8) if codec.startswith("adaq") else taken(256) < 2.6 * taken(8)


@pytest.mark.parametrize(
    ("codec", "pattern"),
    [
        ("int8", "gather"),
        ("int8", "sra"),
        ("topk(ratio=0.01)", "sra"),
        ("topk(ratio=0.01)", "sparse_allreduce"),
        ("globaltopk(ratio=0.01)", "gather"),
        ("adaptive(rate=0.5)", "gather"),
        ("polar_ec(rate=1)", "sra"),
        ("fp16", "reduce"),
    ],
)
def test_expected_bytes_are_those_that_arrive(codec: str, pattern: str) -> None:
    ranks, shape = 4, (256, 512)
    config = config_of(codec, pattern)
    pipelines = [Pipeline(config, rank, ranks) for rank in range(ranks)]
    random = np.random.default_rng(0)
    nbytes = [0.0] * ranks
    run_rounds(
        [
            received(one.round("w", random.standard_normal(shape, np.float32)), one, nbytes)
            for one in pipelines
        ]
    )
    expected = spec_link_bytes(parse(codec), pattern, ranks, math.prod(shape))
    assert np.mean(nbytes) == pytest.approx(expected, rel=0.06)


def test_other_averages_keep_the_gather() -> None:
    for averaging in (Averaging(average="senders"), Averaging(clip="median_norm")):
        choice = exchange_choice(parse("topk(ratio=0.01)"), "auto", 64, averaging)
        assert choice == ("gather", f"{averaging} needs all ranks' tensors")
    config = config_of("topk(ratio=0.1)", "auto", average="senders")
    loop = Loopback(config, 9)
    loop.step({"w": [np.ones((256, 256), np.float32)] * 9})
    assert set(loop.stats[0].sent_bytes) == {"allgather"}


def aggregator(ranks: int, spec: str, exchange: str = "auto", **options: Any) -> object:
    pipeline = Pipeline(config_of(spec, exchange, **options), 0, ranks)
    return pipeline.resolve("w", (256, 256)).aggregator


def test_ranks_choose_by_their_number() -> None:
    assert type(aggregator(2, "int8")) is Gather
    assert type(aggregator(5, "int8")) is Gather
    assert type(aggregator(6, "int8")) is Sra
    assert type(aggregator(64, "topk(ratio=0.01)")) is SparseAllReduce
    assert type(aggregator(64, "int8", "gather")) is Gather


def test_ranks_that_have_agreed_on_messages_between_devices_choose_so() -> None:
    for spec, pattern in (
        ("residual|topk(ratio=0.01)", PeerSparseAllReduce),
        ("residual|topk(ratio=0.01,values=int8)", SparseAllReduce),
        ("residual|int8", Sra),
    ):
        pipeline = Pipeline(config_of(spec, "auto"), 0, 64)
        pipeline.begin_peer_messages(WithPeers())
        assert type(pipeline.resolve("w", (256, 256)).aggregator) is pattern
        assert pipeline.resolver.automatic


def test_two_level_counts_nodes() -> None:
    few = Loopback(config_of("int8", "two_level", ranks_per_node=4), 8)
    many = Loopback(config_of("int8", "two_level", ranks_per_node=1), 8)
    named = Loopback(config_of("int8", "two_level(gather)", ranks_per_node=1), 8)
    for loop, kinds in (
        (few, {"allgather"}),
        (many, {"alltoall", "allgather"}),
        (named, {"allgather"}),
    ):
        loop.step(gradients(8))
        assert {kind for kind in loop.stats[0].sent_bytes if "node" not in kind} == kinds
    assert few.ranks[0].resolver.automatic == {}
    assert many.ranks[0].resolver.automatic["compress.default"].pattern == "two_level(sra)"


def test_a_schedule_may_change_the_pattern() -> None:
    """Many elements at first, few later; nothing is lost on the way."""
    spec = "residual|topk(ratio=ramp(from=0.5,to=0.01,steps=2))"
    loop = Loopback(config_of(spec, "auto"), 6)
    kinds, kept, total = [], np.zeros((256, 256)), np.zeros((256, 256))
    for step in range(4):
        before = dict(loop.stats[0].sent_bytes)
        grads = [
            np.random.default_rng([step, rank]).standard_normal((256, 256)) for rank in range(6)
        ]
        kept += 6.0 * loop.step({"w": grads})["w"][0]
        total += np.sum(grads, axis=0)
        kinds.append(
            {k for k, n in loop.stats[0].sent_bytes.items() if n > before.get(k, 0)} - {"check"}
        )
    assert kinds[0] == {"alltoall", "allgather"}
    assert kinds[-1] == {"allgather"}
    for rank in loop.ranks:
        kept += rank.state_dict()["residual"]["w"].reshape(256, 256)
    np.testing.assert_allclose(kept, total, atol=1e-3)


@pytest.mark.parametrize(
    "spec", ["residual|int4", "residual|topk(ratio=0.02)", "residual|adaptive"]
)
@pytest.mark.parametrize("sizes", [(4, 9), (9, 4)])
def test_residuals_go_along_when_ranks_come_and_go(spec: str, sizes: tuple[int, int]) -> None:
    """The pattern follows the number of ranks; what averages lack stays in the residuals."""
    old, new = sizes
    config = config_of(spec, "auto")
    first = Loopback(config, old)
    first.step(gradients(old))
    states = [one.state_dict() for one in first.ranks]
    pattern = exchange_pattern(parse(spec), "auto", new)
    assert pattern != exchange_pattern(parse(spec), "auto", old)

    second = Loopback(config, new)
    for rank, pipeline in enumerate(second.ranks):
        blank = {name: 0 * one for name, one in states[0]["residual"].items()}
        own = states[rank] if rank < old else {**states[0], "residual": blank}
        pipeline.load_state_dict(resized(own, rank, new))
    shares = [one.state_dict()["residual"] for one in second.ranks]
    grads = gradients(new, 1)
    averages = second.step(grads)
    for name, of_ranks in averages.items():
        assert all(np.array_equal(one, of_ranks[0]) for one in of_ranks)
        corrected = sum(share[name].astype(np.float64) for share in shares)
        corrected += np.sum(grads[name], axis=0, dtype=np.float64).reshape(-1)
        kept = sum(one.state_dict()["residual"][name].astype(np.float64) for one in second.ranks)
        sent = new * of_ranks[0].reshape(-1).astype(np.float64)
        np.testing.assert_allclose(sent + kept, corrected, atol=1e-3)


def test_ranks_compare_their_choices() -> None:
    few, many = (Pipeline(config_of("residual|int8", "auto"), 0, ranks) for ranks in (4, 8))
    assert b"exchange: auto" not in few.comparison.text().tobytes()
    assert b"exchange: auto" in many.comparison.text().tobytes()
    assert many.resolver.automatic["compress.default"].pattern == "sra"
    assert Pipeline(config_of("residual|int8", "sra"), 0, 8).resolver.automatic == {}
