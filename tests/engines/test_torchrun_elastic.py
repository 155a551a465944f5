"""Jobs of torchrun that start their workers again: after a crash, and with another number of ranks."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from launch import ENVIRONMENT, ROOT, run
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from workers.elastic_torchrun import EVERY

from support.forks import python

LIMIT = 180.0
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
WORKER = ["-W", "error", "-m", "workers.elastic_torchrun"]
Row = dict[str, Any]
Life = dict[int, list[Row]]
"""The rows of all ranks by step, of the steps that all of them have made."""


class Job:
    """Agents of torchrun by name, each of them a machine, and the rows of their workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The rendezvous outlives every agent, as on a machine that does not train.
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.end_at(10**6)

    def end_at(self, step: int) -> None:
        new = self.folder / "last.new"
        new.write_text(str(step))
        new.replace(self.folder / "last")

    def start(self, name: str, options: Sequence[str] = ()) -> None:
        """Start an agent, by default one of one or two of the job."""
        rendezvous = [
            *("--nnodes=1:2", "--nproc-per-node=1", "--local-addr=127.0.0.1", "--rdzv-id=job"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._store.port}"),
            "--rdzv-conf=is_host=0,last_call_timeout=3",
        ]
        command = [TORCHRUN, *(options or rendezvous), "--max-restarts=3", "--no-python"]
        command += [*python(), *WORKER]
        apart = {} if options else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with (self.folder / "log").open("ab") as log:
            self.agents[name] = subprocess.Popen(
                [*command, str(self.folder)],
                env={**os.environ, **ENVIRONMENT, **apart},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """The agent and its workers, as if their machine had lost its power."""
        agent = self.agents.pop(name)
        workers = psutil.Process(agent.pid).children(recursive=True)
        agent.kill()
        for one in workers:
            one.kill()
        agent.wait()

    def rows(self) -> list[Row]:
        rows = []
        for path in sorted(self.folder.glob("rows-*")):
            rows += [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        return rows

    def wait_for(self, what: str, holds: Callable[[list[Row]], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not holds(self.rows()):
            assert time.monotonic() < deadline, f"no {what}: {self.log()}"
            for agent in self.agents.values():
                assert agent.poll() is None, f"no {what}: {self.log()}"
            time.sleep(0.05)

    def wait_for_life(self, size: int) -> None:
        """Wait until a new life of this number of ranks has made a checkpoint and a few steps more."""
        known = {row["life"] for row in self.rows()}
        self.wait_for(
            f"steps of {size} ranks",
            lambda rows: any(
                row["life"] not in known
                and row["size"] == size
                and row["step"] > row["first"] + EVERY + 3
                for row in rows
            ),
        )

    def finish(self) -> list[Life]:
        """End the job; returns its lives."""
        self.end_at(0)
        for agent in self.agents.values():
            assert agent.wait(LIMIT) == 0, self.log()
        return lives_of(self.rows())

    def stop(self) -> None:
        for name in list(self.agents):
            if self.agents[name].poll() is None:
                self.kill(name)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-8000:]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.stop()


def lives_of(rows: list[Row]) -> list[Life]:
    lives: dict[float, dict[int, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        lives[row["life"]][row["step"]][row["rank"]] = row
    complete = [
        {
            step: [of_ranks[rank] for rank in sorted(of_ranks)]
            for step, of_ranks in sorted(lives[life].items())
            if len(of_ranks) == of_ranks[min(of_ranks)]["size"]
        }
        for life in sorted(lives)
    ]
    return [life for life in complete if life]


def check_steps(lives: list[Life]) -> None:
    """Equal parameters on all ranks after each step; applied and unsent changes are all changes."""
    for life in lives:
        for step, rows in life.items():
            assert len({row["digest"] for row in rows}) == 1, step
            owed = [row["given"] + row["before"] - row["after"] for row in rows]
            assert rows[0]["applied"] == pytest.approx(sum(owed) / len(owed), abs=5e-3), step


def check_restarts(lives: list[Life]) -> int:
    """Each life begins with the newest checkpoint; returns the number of lives that had one."""
    saved: Life = {}
    checked = 0
    for old, new in itertools.pairwise(lives):
        saved.update({step: rows for step, rows in old.items() if step % EVERY == 0})
        begins = min(new) - 1
        # The last checkpoint may have been incomplete when the workers ended.
        assert begins > max(old) - 2 * EVERY
        if begins > 0:
            check_states(saved[begins], new[begins + 1])
            checked += 1
    return checked


def check_states(saved: list[Row], begun: list[Row]) -> None:
    """As docs/checkpoints.md says: the same ranks with their own states, others with the mean."""
    if len(saved) == len(begun):
        for one, other in zip(saved, begun, strict=True):
            assert other["before_digest"] == one["after_digest"]
            assert other["gossip_before"] == one["gossip_after"]
        return
    mean = sum(row["after"] for row in saved) / len(saved)
    columns = zip(*(row["gossip_after"] for row in saved), strict=True)
    model = [sum(column) / len(saved) for column in columns]
    for row in begun:
        assert row["before"] == pytest.approx(mean, abs=2e-3)
        assert row["gossip_before"] == pytest.approx(model, rel=1e-6, abs=1e-7)


def test_machines_go_and_come_back(job: Job) -> None:
    for name in "ab":
        job.start(name)
    job.wait_for_life(2)
    job.kill("b")
    job.wait_for_life(1)
    job.start("b")
    job.wait_for_life(2)
    lives = job.finish()
    # The first agent may have begun without the second one, which came late.
    assert [next(iter(life.values()))[0]["size"] for life in lives][-3:] == [2, 1, 2]
    check_steps(lives)
    assert check_restarts(lives) >= 2


def test_a_worker_crashes(job: Job) -> None:
    """The commonest case: one machine, and as many ranks as before."""
    job.start("a", ["--standalone", "--nproc-per-node=2"])
    job.wait_for_life(2)
    victim = max((row for row in job.rows() if row["rank"] == 1), key=lambda row: row["time"])
    os.kill(victim["pid"], signal.SIGKILL)
    job.wait_for_life(2)
    lives = job.finish()
    # Nothing fails on the way, such as a connection to a worker that has gone.
    assert [row["restarts"] for life in lives for row in life[min(life)]] == [0, 0, 1, 1]
    check_steps(lives)
    assert check_restarts(lives) == 1


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="ddp"),
        pytest.param(["--gossip"], id="gossip", marks=pytest.mark.full),
    ],
)
def test_example(options: list[str], tmp_path: Path) -> None:
    command = ["-W", "error", ROOT / "examples/elastic_digits.py", "--output", tmp_path, *options]
    for steps, ranks, begin in ((60, 2, 0), (240, 1, 60)):
        arguments = [*command, "--steps", str(steps)]
        finished = run(arguments, ranks, "torchrun", {"PYTHONPATH": str(ROOT)})
        assert finished.status == 0, finished.output
        assert f"step {begin} on {ranks} ranks" in finished.output
    (accuracy,) = re.findall(r"test accuracy ([0-9.]+)", finished.output)
    assert float(accuracy) > 0.7, finished.output
