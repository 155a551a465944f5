"""Bytes that pass a rank's link: formulas next to the bytes that really arrive."""

from __future__ import annotations

import numpy as np
import pytest

from exchange_bytes import received
from gradcomp import Pipeline
from gradcomp.codec.spec import parse
from gradcomp.exchange.link import costs_more, dense_link_bytes, link_bytes
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


def test_requests_in_a_node_pass_no_link() -> None:
    assert link_bytes("node allreduce", 1000, 4) == 0
    assert link_bytes("broadcast", 1000, 4) == 1000
    assert dense_link_bytes(1000, 4, scatters=True) == dense_link_bytes(1000, 4) / 2


def test_headers_cost_nothing() -> None:
    assert costs_more(102, 100)
    assert not costs_more(101, 100)


def test_remedies() -> None:
    other = "a spec that sends less"
    sra = f"exchange: sra (its bytes do not grow with the ranks), or {other}"
    assert link_remedy([(parse("bf16"), "gather")], 8) == sra
    assert link_remedy([(parse("adaptive"), "gather")], 8) == sra
    assert link_remedy([(parse("bf16"), "auto")], 2) == sra
    assert link_remedy([(parse("bf16"), "auto"), (parse("fp16"), "auto")], 8) == other
    assert link_remedy([(parse("adaptive"), "sra")], 8) == other
