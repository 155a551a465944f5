"""Elastic jobs of real Horovod with TensorFlow 2, Keras 3 and Keras 2."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_checks import rank_0_dies, ranks_come_go_and_die
from launch import ENVIRONMENT, HERE, HOROVODRUN

from elastic.job import ElasticJob
from elastic.laws import Life, check_replicas, check_resets, complete
from support.forks import TENSORFLOW, python

GRAPHS = ["-m", "workers.tf_elastic"]
FIT = ["-m", "workers.tf_elastic_fit"]
RUN = ["-m", "horovod_compressors.run", "--compression", "residual|topk(ratio=0.05)"]
SCRIPT = HERE / "workers" / "stock_tf_elastic_script.py"


HOSTS = {"localhost": 1, "127.0.0.1": 1}


def started(
    folder: Path, command: list[str], hosts: dict[str, int] = HOSTS, **environment: str
) -> Iterator[ElasticJob]:
    (folder / "last").write_text("1000000")
    every = {**ENVIRONMENT, **environment}
    job = ElasticJob(
        folder, ["-W", "error", *command], hosts, HOROVODRUN, every, python(TENSORFLOW)
    )
    yield job
    job.stop()


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ElasticJob]:
    yield from started(tmp_path, request.param)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[ElasticJob]:
    """A job of one rank."""
    yield from started(tmp_path, GRAPHS, {"localhost": 1})


@pytest.fixture
def unedited(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ElasticJob]:
    script = shutil.copy(SCRIPT, tmp_path)  # next to it is a module named tf_keras
    yield from started(tmp_path, [*RUN, script], **request.param)


def check_sums(lives: list[Life]) -> None:
    """With op=Sum, applied changes are those of all ranks, also after a reset."""
    for life in lives:
        for step, rows in complete(life).items():
            owed = sum(row["sum"]["owed"] for row in rows)
            assert rows[0]["sum"]["applied"] == pytest.approx(owed, abs=5e-3), step


@pytest.mark.parametrize("job", [GRAPHS], indirect=True, ids=["tape"])
def test_ranks_come_go_and_die_in_graphs(job: ElasticJob, tmp_path: Path) -> None:
    check_sums(ranks_come_go_and_die(job, tmp_path / "last"))


@pytest.mark.parametrize("job", [FIT], indirect=True, ids=["fit"])
def test_ranks_come_go_and_die_in_fit(job: ElasticJob, tmp_path: Path) -> None:
    ranks_come_go_and_die(job, tmp_path / "last")


def test_ranks_that_differ_end_the_job(alone: ElasticJob, tmp_path: Path) -> None:
    alone.wait_for_size(1)
    (tmp_path / "newcomer").write_text("residual|topk(ratio=0.5)")
    alone.set_hosts({"localhost": 2})
    with pytest.raises(AssertionError, match="processes exited with non-zero status"):
        alone.end()
    log = (tmp_path / "log").read_text(errors="replace")
    assert "ProtocolError: the ranks run different compression" in log


@pytest.mark.parametrize(
    "unedited",
    [pytest.param({}, marks=pytest.mark.full), {"TF_USE_LEGACY_KERAS": "1"}],
    indirect=True,
    ids=["keras3", "keras2"],
)
def test_fit_runs_unedited(unedited: ElasticJob, tmp_path: Path) -> None:
    lives = rank_0_dies(unedited, tmp_path / "last")
    check_replicas(lives)
    assert check_resets(lives) >= 2
    log = (tmp_path / "log").read_text(errors="replace")
    assert "compresses with residual(beta=1.0,gamma=1.0)|topk(ratio=0.05,values=fp32)" in log
