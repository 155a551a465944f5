"""Elastic jobs of real Horovod: slots that come and go, and a worker that is killed."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch import ENVIRONMENT, HOROVODRUN

from elastic_job import ElasticJob, Row

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
    started = ElasticJob(tmp_path, request.param, hosts, HOROVODRUN, ENVIRONMENT)
    yield started
    started.stop()


def lives_of(rows: list[Row]) -> list[dict[int, dict[int, Row]]]:
    """The rows of each life, by step and rank, in the order of lives."""
    lives: dict[float, dict[int, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        lives[row["life"]][row["step"]][row["rank"]] = row
    return [lives[life] for life in sorted(lives)]


def complete(life: dict[int, dict[int, Row]]) -> dict[int, list[Row]]:
    """The steps that all ranks of a life have made."""
    return {
        step: [of_ranks[rank] for rank in sorted(of_ranks)]
        for step, of_ranks in sorted(life.items())
        if len(of_ranks) == of_ranks[min(of_ranks)]["size"]
    }


def check_replicas(lives: list[dict[int, dict[int, Row]]]) -> None:
    """Equal parameters on all ranks after each step."""
    for life in lives:
        for step, rows in complete(life).items():
            assert len({row["digest"] for row in rows}) == 1, step


def check_steps(lives: list[dict[int, dict[int, Row]]]) -> None:
    """Applied and unsent changes are all changes."""
    for life in lives:
        for step, rows in complete(life).items():
            owed = [row["given"] + row["before"] - row["after"] for row in rows]
            assert rows[0]["applied"] == pytest.approx(sum(owed) / len(owed), abs=2e-3), step


def check_resets(lives: list[dict[int, dict[int, Row]]]) -> int:
    """Survivors' residuals count as before; returns the number of resets."""
    checked = 0
    for old, new in itertools.pairwise(lives):
        first = complete(new)[min(complete(new))]
        # The step before: at a failure the last one that was committed.
        before = complete(old).get(first[0]["step"] - 1)
        if before is None:
            continue
        stayed = {row["pid"] for row in first}
        kept = sum(row["after"] for row in before if row["pid"] in stayed) / len(before)
        assert sum(row["before"] for row in first) / len(first) == pytest.approx(kept, abs=2e-3)
        checked += 1
    return checked


@pytest.mark.parametrize("job", [COMMAND], indirect=True, ids=["own"])
def test_ranks_come_go_and_die(job: ElasticJob, tmp_path: Path) -> None:
    job.wait_for_size(2)
    job.kill(rank=1, size=2)
    job.wait_for_size(1)
    job.wait_for_size(2)  # the host is back
    job.set_hosts({"localhost": 2, "127.0.0.1": 1})
    job.wait_for_size(3)
    job.set_hosts({"localhost": 1, "127.0.0.1": 1})
    last = job.wait_for_size(2)
    (tmp_path / "last").write_text(str(last["step"] + 5))
    job.end()
    lives = lives_of(job.rows())
    sizes = [next(iter(complete(life).values()))[0]["size"] for life in lives]
    assert sizes[0] == 2
    assert {1, 3} <= set(sizes)
    assert sizes[-1] == 2
    check_replicas(lives)
    check_steps(lives)
    assert check_resets(lives) >= 3


@pytest.mark.parametrize("job", [UNEDITED], indirect=True, ids=["unedited"])
def test_script_runs_unedited(job: ElasticJob, tmp_path: Path) -> None:
    job.wait_for_size(2)
    job.kill(rank=0, size=2)
    job.wait_for_size(1)
    last = job.wait_for_size(2)
    (tmp_path / "last").write_text(str(last["step"] + 5))
    job.end()
    lives = lives_of(job.rows())
    assert len(lives) >= 3
    check_replicas(lives)
    assert "compresses with residual(beta=1.0,gamma=1.0)|topk(ratio=0.05,values=fp32)" in job.log()
