"""Elastic jobs of real Horovod: slots that come and go, and a worker that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_checks import check_estimates, rank_0_dies, ranks_come_go_and_die
from launch import ENVIRONMENT, HOROVODRUN

from elastic.job import ElasticJob
from elastic.laws import check_replicas
from support.forks import python

SCRIPT = Path(__file__).parent / "workers" / "stock_elastic_script.py"
UNEDITED = [
    "-m",
    "horovod_compressors.run",
    "--compression",
    "residual|topk(ratio=0.05)",
    str(SCRIPT),
]
COMMAND = ["-W", "error", "-m", "workers.elastic_horovod"]


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ElasticJob]:
    (tmp_path / "last").write_text("1000000")
    hosts = {"localhost": 1, "127.0.0.1": 1}
    # Between their steps, ranks leave the processors to others.
    environment = {**ENVIRONMENT, "HOROVOD_CYCLE_TIME": "2"}
    started = ElasticJob(tmp_path, request.param, hosts, HOROVODRUN, environment, python())
    yield started
    started.stop()


@pytest.mark.parametrize("job", [COMMAND], indirect=True, ids=["own"])
def test_ranks_come_go_and_die(job: ElasticJob, tmp_path: Path) -> None:
    check_estimates(ranks_come_go_and_die(job, tmp_path / "last"))


@pytest.mark.parametrize("job", [UNEDITED], indirect=True, ids=["unedited"])
def test_script_runs_unedited(job: ElasticJob, tmp_path: Path) -> None:
    lives = rank_0_dies(job, tmp_path / "last")
    assert len(lives) >= 3
    check_replicas(lives)
    assert "compresses with residual(beta=1.0,gamma=1.0)|topk(ratio=0.05,values=fp32)" in job.log()
