"""torchft's LocalSGD and DiLoCo with compression: real replicas, a lighthouse, kills and rejected steps."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from launch import ENVIRONMENT
from torchft.coordination import LighthouseServer

from support.forks import python

LIMIT = 120.0
NAMES = ("r0", "r1")
Row = dict[str, Any]


class Job:
    """Replicas of `workers.torchft_replica` by name, and what they have logged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = folder / "last"
        self._lighthouse = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=2000, heartbeat_timeout_ms=1000
        )
        self._address = self._lighthouse.address().replace(os.uname().nodename, "127.0.0.1")
        self.replicas: dict[str, subprocess.Popen[bytes]] = {}

    def end_at(self, step: int) -> None:
        """Set the outer step at which each run ends."""
        new = self._last.with_suffix(".new")
        new.write_text(str(step))
        new.replace(self._last)

    def start(self, name: str, runs: Sequence[dict[str, Any]], **options: Any) -> None:
        own = {
            "name": name,
            "seed": int(name[-1]),
            "log": str(self._folder / name),
            "lighthouse": self._address,
            "loop": "diloco",
            "least": 1,
            "last": str(self._last),
            "pause": 0.0,
            "reject": None,
            "runs": runs,
            **options,
        }
        with (self._folder / f"{name}.err").open("ab") as errors:
            self.replicas[name] = subprocess.Popen(
                [*python(), "-m", "workers.torchft_replica", json.dumps(own)],
                # Equal digests in all processes.
                env={**os.environ, **ENVIRONMENT, "PYTHONHASHSEED": "0"},
                stdout=errors,
                stderr=errors,
            )

    def rows(self, name: str, run: int = 0) -> list[Row]:
        path = self._folder / f"{name}-{run}"
        whole = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in whole]

    def wait_for_size(self, name: str, size: int) -> None:
        """Wait for five more outer steps of this number of replicas."""
        deadline = time.monotonic() + LIMIT
        before = len(self.rows(name))
        while [row["size"] for row in self.rows(name)[before:]].count(size) < 5:
            assert time.monotonic() < deadline, self.errors()
            assert self.replicas[name].poll() is None, self.errors()
            time.sleep(0.02)

    def end(self) -> None:
        for replica in self.replicas.values():
            assert replica.wait(LIMIT) == 0, self.errors()

    def errors(self) -> str:
        return "\n".join(path.read_text()[-4000:] for path in self._folder.glob("*.err"))

    def stop(self) -> None:
        for replica in self.replicas.values():
            replica.kill()
            replica.wait()
        self._lighthouse.shutdown()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path)
    yield started
    started.stop()


def committed(rows: list[Row]) -> dict[int, Row]:
    return {row["step"]: row for row in rows if row["committed"]}


def check_equal_parameters(job: Job, run: int = 0) -> None:
    """Replicas that have committed a step have equal parameters after it."""
    digests = defaultdict(set)
    for name in NAMES:
        for step, row in committed(job.rows(name, run)).items():
            digests[step].add(row["digest"])
    assert digests
    assert all(len(one) == 1 for one in digests.values()), digests


def check_law(job: Job) -> int:
    """Applied changes and residuals are all changes, in each step; returns the number of steps."""
    rows = [committed(job.rows(name)) for name in NAMES]
    checked = 0
    for step in range(1, 1 + max(max(own) for own in rows)):
        members = [own for own in rows if step in own]
        # A replica that has just joined sends the change of the one it has joined from.
        if not all(step - 1 in own and own[step]["size"] == len(members) for own in members):
            continue
        owed = [
            own[step]["change"] + own[step - 1]["residual"] - own[step]["residual"]
            for own in members
        ]
        applied = members[0][step - 1]["sum"] - members[0][step]["sum"]
        assert applied == pytest.approx(sum(owed) / len(owed), abs=2e-3), step
        checked += 1
    return checked


def test_every_loop_of_torchft(job: Job) -> None:
    """With a step that both replicas refuse, and last with specs that differ."""
    job.end_at(6)
    for name in NAMES:
        runs = [
            {"spec": "residual|topk(ratio=0.05)", "reject": 3},
            {"spec": "residual|int8", "loop": "fragments"},
            {"spec": "int8", "loop": "local_sgd"},
            {"spec": "int4" if name == "r0" else "int8"},
        ]
        job.start(name, runs, least=2)
    job.end()
    for run in range(3):
        check_equal_parameters(job, run)
    assert check_law(job) >= 3
    for name in NAMES:
        rows = job.rows(name)
        at = [number for number, row in enumerate(rows) if not row["committed"]]
        assert any(rows[number]["step"] == 3 for number in at)
        for number in at:
            before = rows[number - 1]["residual_digest"] if number else hash(b"")
            assert rows[number]["residual_digest"] == before
        assert rows[-1]["bytes"] < 4 * 2 * 80 * 64 * len(rows) / 5
        assert "the ranks run different compression" in job.rows(name, 3)[-1]["error"]


def test_a_killed_replica_comes_back(job: Job) -> None:
    job.end_at(10**9)
    runs = [{"spec": "residual|randomk(ratio=0.1)"}]
    for name in NAMES:
        job.start(name, runs, pause=0.02)
    job.wait_for_size("r0", 2)
    job.replicas["r1"].kill()
    job.replicas["r1"].wait()
    job.wait_for_size("r0", 1)
    job.start("r1", runs, pause=0.02)
    job.wait_for_size("r0", 2)
    job.end_at(job.rows("r0")[-1]["step"] + 10)
    job.end()
    check_equal_parameters(job)
    assert check_law(job) >= 10
