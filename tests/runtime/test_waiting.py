"""What waits in residuals is measured, and a job says so if it is too much."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import pytest

from gradcomp import Loopback, Metrics
from gradcomp.exchange.waiting import CHECK_EVERY
from gradcomp.runtime.measure.end_report import log_at_end

SHAPE = (64, 80)


def train(spec: str, steps: int, scale: float = 1.0) -> Loopback:
    rng = np.random.default_rng(0)
    loop = Loopback(spec, world_size=2)
    mean = rng.normal(size=SHAPE)
    for _ in range(steps):
        loop.step({"w": [scale * (mean + rng.normal(size=SHAPE)) for _ in range(2)]})
    return loop


def test_residuals_are_measured_in_energies_of_the_gradient(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "gradcomp"):
        loop = train("residual|adaptive(rate=0.5)", CHECK_EVERY + 1, scale=1e-3)
    (spec,) = loop.stats[0].waiting
    assert spec == "residual(beta=1.0,gamma=1.0)|adaptive(rank=auto,rate=0.5)"
    assert 1 < loop.stats[0].waiting[spec] < 100
    assert loop.stats[0].behind == []
    assert not caplog.records


@pytest.mark.parametrize("spec", ["fp16", "residual|topk(ratio=0.1)"])
def test_there_is_nothing_before_the_first_measurement(spec: str) -> None:
    assert train(spec, CHECK_EVERY).stats[0].waiting == {}


def test_what_falls_behind_is_named_once_and_on_one_rank(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gradcomp"):
        loop = train("residual|topk(k=1)", 5 * CHECK_EVERY + 2)
    (record,) = caplog.records
    text = record.getMessage()
    assert (
        "error feedback of 'residual(beta=1.0,gamma=1.0)|topk(k=1,values=fp32)' falls behind"
        in text
    )
    assert "for 200 steps" in text
    assert "in step 300" in text
    assert next(iter(loop.stats[1].waiting.values())) > 1000
    assert loop.stats[1].behind == list(loop.stats[1].waiting)
    caplog.clear()
    rows: list[Mapping[str, float]] = []
    Metrics(loop.ranks[0], lambda values, step: rows.append(values)).close()
    (row,) = rows
    (energies,) = loop.stats[0].waiting.values()
    assert row["gradcomp/specs_behind"] == 1
    assert row["gradcomp/waiting_energies/residual_topk_k_1"] == energies
    job = Owner()
    with caplog.at_level(logging.INFO, "gradcomp"):
        log_at_end(job, lambda: loop.stats[0])
        del job
    assert caplog.messages[0].endswith(
        "; error feedback falls behind: 'residual(beta=1.0,gamma=1.0)|topk(k=1,values=fp32)'"
    )


class Owner:
    """Its end is that of a job."""
