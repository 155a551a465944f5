"""A rank of FSDP2 that ends or stops ends the job, and the others name it."""

from __future__ import annotations

import pytest
from launch import run
from test_ddp_failures import TOPK, check_lost, run_lost

from support.scope import FULL

LOST = ["kill fp16", f"stop {TOPK}"]
if FULL:
    LOST += [f"kill {TOPK}", "stop fp16", "raise fp16", f"raise {TOPK}"]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    jobs = [f"3 fsdp_lost {lost}" for lost in LOST]
    return run_lost(tmp_path_factory.mktemp("lost"), jobs)


@pytest.mark.parametrize("lost", LOST)
def test_every_rank_names_the_lost_one(printed: dict[str, str], lost: str) -> None:
    """Exchanges under way end the backward passes of all others."""
    check_lost(printed[f"3 fsdp_lost {lost}"], 1)


@pytest.mark.full
@pytest.mark.parametrize("lost", LOST)
def test_torchrun_lets_ranks_name_the_lost_one(lost: str) -> None:
    job = run(["-m", "workers.fsdp_lost", *lost.split(" ")], 3, "torchrun", limit=240)
    assert job.status != 0, job.output
    check_lost(job.output, 1)
