"""Bytes that pass a rank's link: formulas beside the bytes that really arrive."""

from __future__ import annotations

import numpy as np
import pytest

from exchange_bytes import received
from gradcomp import Pipeline
from gradcomp.codec.spec import parse
from gradcomp.exchange.link import (
    costs_more,
    dense_link_bytes,
    gather_limit,
    link_bytes,
    pattern_link_bytes,
)
from gradcomp.exchange.select import link_remedy
from gradcomp.runtime.loopback import run_rounds
from support.pipelines import config_of

NUMEL = 64 * 1024
RANKS = 8


@pytest.mark.parametrize(
    ("spec", "exchange", "ranks_per_node"),
    [
        ("identity", "auto", 1),
        ("fp16", "reduce", 1),
        ("bf16", "gather", 1),
        ("int8", "sra", 1),
        ("topk(ratio=0.01)", "sparse_allreduce", 1),
        ("powersgd(rank=2,start_step=0)", "auto", 1),
        ("signsgd_mv", "auto", 1),
        ("bf16", "two_level(gather)", 2),
        ("int8", "two_level(sra)", 2),
    ],
)
def test_as_many_bytes_arrive_as_are_counted(spec: str, exchange: str, ranks_per_node: int) -> None:
    config = config_of(spec, exchange=exchange, ranks_per_node=ranks_per_node)
    pipelines = [Pipeline(config, rank, RANKS) for rank in range(RANKS)]
    random = np.random.default_rng(0)
    nbytes = [0.0] * RANKS
    rounds = [
        received(
            one.round("w", random.standard_normal((256, NUMEL // 256), np.float32)), one, nbytes
        )
        for one in pipelines
    ]
    run_rounds(rounds, ranks_per_node)
    for one, arrived in zip(pipelines, nbytes, strict=True):
        assert one.stats.link_bytes == pytest.approx(arrived, rel=0.05)
        assert one.stats.dense_link_bytes == 2 * 7 / 8 * 4 * NUMEL
    leads = pipelines[0].stats
    assert leads.link_ratio == pytest.approx(leads.dense_link_bytes / leads.link_bytes)


@pytest.mark.parametrize("pattern", ["reduce", "gather", "sra", "sparse_allreduce"])
@pytest.mark.parametrize("ranks", [1, 2, 16])
def test_patterns(pattern: str, ranks: int) -> None:
    expected = 15000 if pattern == "gather" and ranks == 16 else 2000 * (ranks - 1) / ranks
    assert pattern_link_bytes(pattern, 1000, ranks) == pytest.approx(expected)


def test_requests_in_a_node_pass_no_link() -> None:
    assert link_bytes("node allreduce", 1000, 4) == 0
    assert link_bytes("broadcast", 1000, 4) == 1000
    assert dense_link_bytes(1000, 4, scatters=True) == dense_link_bytes(1000, 4) / 2


@pytest.mark.parametrize(("nbytes", "limit"), [(1000, 2), (500, 4), (250, 8), (10, 202)])
def test_the_most_ranks_of_a_gather(nbytes: int, limit: int) -> None:
    assert gather_limit(1000, nbytes) == limit
    for ranks in (limit, limit + 1):
        more = costs_more(
            pattern_link_bytes("gather", nbytes, ranks), dense_link_bytes(1000, ranks)
        )
        assert more == (ranks > limit)


def test_remedies() -> None:
    other = "a spec that sends less"
    sra = f"exchange: sra, whose bytes do not grow with the ranks, or {other}"
    assert link_remedy([(parse("bf16"), "auto")]) == sra
    assert "exchange: sparse_allreduce" in link_remedy([(parse("globaltopk(k=9)"), "auto")])
    assert link_remedy([(parse("adaptive"), "auto"), (parse("fp16"), "auto")]) == other
