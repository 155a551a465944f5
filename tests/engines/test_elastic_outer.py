"""Outer steps of processes that are killed, restarted and stopped: real processes, one store."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launch import ENVIRONMENT
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from support.forks import python

LIMIT = 180.0
WORKER = ("-W", "error", "-m", "workers.elastic_outer")
Row = dict[str, Any]


class Job:
    """Processes of `workers.elastic_outer` by name, and what they have logged."""

    def __init__(self, folder: Path, spec: str) -> None:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._store.set("last", "1000000")
        self._folder, self._spec = folder, spec
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        arguments = [self._store.port, name, self._folder / name, self._spec]
        with (self._folder / f"{name}.err").open("ab") as errors:
            self.processes[name] = subprocess.Popen(
                [*python(), *WORKER, *map(str, arguments)],
                # Equal digests in all processes.
                env={**os.environ, **ENVIRONMENT, "PYTHONHASHSEED": "0"},
                stderr=errors,
            )

    def rows(self, name: str) -> list[Row]:
        path = self._folder / name
        whole = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in whole]

    def wait_for(self, name: str, round_: int) -> None:
        deadline = time.monotonic() + LIMIT
        while not any(row["round"] >= round_ for row in self.rows(name)):
            assert time.monotonic() < deadline, self.stacks()
            assert self.processes[name].poll() is None, self.errors()
            time.sleep(0.02)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def last(self, name: str) -> int:
        round_: int = self.rows(name)[-1]["round"]
        return round_

    def finish(self) -> None:
        """End the job soon, at one exchange for all."""
        self._store.set("last", str(self.last("a") + 20))
        for process in self.processes.values():
            assert process.wait(LIMIT) == 0, self.errors()

    def errors(self) -> str:
        return "\n".join(path.read_text() for path in self._folder.glob("*.err"))

    def stacks(self) -> str:
        """Errors, and where each process is."""
        for process in self.processes.values():
            process.send_signal(signal.SIGUSR1)
        time.sleep(2)
        logged = {name: self.rows(name)[-1:] for name in self.processes}
        return f"{logged}\n{self.errors()}"

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    made = Job(tmp_path, request.param)
    yield made
    made.stop()


def by_round(job: Job) -> dict[int, dict[str, Row]]:
    rounds: dict[int, dict[str, Row]] = defaultdict(dict)
    for name in job.processes:
        for row in job.rows(name):
            rounds[row["round"]][name] = row
    return rounds


def check_exchanges(job: Job, killed: str) -> set[int]:
    """All members are equal after each exchange, and nothing of their changes is lost.

    Returns:
        The numbers of members that exchanges had.
    """
    sizes = set()
    residuals: dict[str, float] = defaultdict(float)
    before: float | None = None
    rounds = by_round(job)
    assert sorted(rounds) == list(range(max(rounds) + 1))
    for round_, rows in sorted(rounds.items()):
        members = next(iter(rows.values()))["members"]
        sizes.add(len(members))
        assert all(row["members"] == members for row in rows.values())
        assert len({row["digest"] for row in rows.values()}) == 1, round_
        # A process may be killed after an exchange and before it has logged it.
        assert set(rows) | {killed} >= set(members)
        first = next(iter(rows.values()))
        if before is not None and set(rows) == set(members):
            samples = sum(row["samples"] for row in rows.values())
            applied = 0.0
            for name, row in rows.items():
                if row["samples"] == 0:
                    residuals[name] = 0.0  # a newcomer's
                weight = row["samples"] * len(members) / samples
                sent = weight * row["change"] + residuals[name] - row["residual"]
                applied += sent / len(members)
            assert math.isclose(before - first["sum"], applied, abs_tol=0.05), round_
        for name, row in rows.items():
            residuals[name] = row["residual"]
        before = first["sum"]
    return sizes


@pytest.mark.parametrize(
    "job",
    ["residual|topk(ratio=0.05)", pytest.param("identity", marks=pytest.mark.full)],
    indirect=True,
)
def test_a_killed_process_comes_back(job: Job) -> None:
    for name in "abc":
        job.start(name)
    for name in "abc":
        job.wait_for(name, 3)
    for _ in range(2):
        job.kill("c")
        job.wait_for("a", job.last("a") + 2)
        job.start("c")
        job.wait_for("c", job.last("a") + 1)
    job.finish()
    assert check_exchanges(job, "c") == {2, 3}


@pytest.mark.parametrize("job", ["residual|int4"], indirect=True)
def test_a_late_process_joins_again(job: Job) -> None:
    """It stands still for longer than the grace period, and keeps its residual and its change."""
    for name in "abc":
        job.start(name)
    for name in "ab":
        job.wait_for(name, 3)
    job.processes["b"].send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    job.processes["b"].send_signal(signal.SIGCONT)
    job.wait_for("b", job.last("a") + 2)
    job.finish()
    assert 3 in check_exchanges(job, "b")
