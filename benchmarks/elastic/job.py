"""An elastic job of Horovod on this machine, whose slots change while it runs; for tests, too.

A failure costs Horovod a whole host, so each worker that may be killed needs a host of its own: names
that all resolve to this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

LIMIT = 180.0
# A survivor may wait so long for a rank that is dead: less than those who watch the job.
GLOO_TIMEOUT = "100"
# Stock horovodrun imports TensorFlow to find out whether Horovod has Gloo: seconds in each job.
HOROVODRUN = """import sys
from horovod.runner import launch
launch.gloo_built = lambda verbose=False: True
sys.exit(launch.run_commandline())"""
Row = dict[str, Any]


def rows_in(folder: Path) -> list[Row]:
    """All rows that workers have logged so far, of one process after the other."""
    rows = []
    for path in sorted(folder.glob("*.jsonl")):
        rows += [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    return rows


class ElasticJob:
    """``horovodrun`` with a host discovery script; the workers log rows of JSON in a folder.

    Args:
        folder: for the hosts, the log and the rows.
        command: of a worker, after ``python``; it gets the folder of rows as its last argument.
        hosts: slots by host at the beginning.
        launcher: ``horovodrun``, or a stand-in.
        environment: variables besides those of this process.
        python: starts a worker's command.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        hosts: Mapping[str, int],
        launcher: Sequence[str] = (sys.executable, "-c", HOROVODRUN),
        environment: Mapping[str, str] = MappingProxyType({}),
        python: Sequence[str] = (sys.executable,),
    ) -> None:
        self._folder = folder
        self.rows_folder = folder / "rows"
        self.rows_folder.mkdir()
        self._hosts = folder / "hosts"
        self.set_hosts(hosts)
        discover = folder / "discover.sh"
        discover.write_text(f"#!/bin/sh\ncat {self._hosts}\n")
        discover.chmod(0o755)
        self._log = (folder / "log").open("wb")
        elastic = ["-np", str(sum(hosts.values())), "--min-np", "1", "--max-np", "4"]
        # Without an interface horovodrun waits for a second machine.
        elastic += ["--network-interface", "lo", "--blacklist-cooldown-range", "1", "2"]
        elastic += ["--host-discovery-script", str(discover)]
        fixed = {"PYTHONHASHSEED": "0", "HOROVOD_GLOO_TIMEOUT_SECONDS": GLOO_TIMEOUT}
        self._process = subprocess.Popen(
            [*launcher, *elastic, *python, *command, str(self.rows_folder)],
            env=_with_this_module({**os.environ, **environment, **fixed}),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def set_hosts(self, hosts: Mapping[str, int]) -> None:
        """Change the slots."""
        new = self._hosts.with_suffix(".new")
        new.write_text("".join(f"{host}:{slots}\n" for host, slots in hosts.items()))
        new.replace(self._hosts)

    def rows(self) -> list[Row]:
        """All rows so far; see `rows_in`."""
        return rows_in(self.rows_folder)

    def wait_for(self, what: str, holds: Callable[[list[Row]], bool]) -> list[Row]:
        """Wait until the rows have something; returns them."""
        deadline = time.monotonic() + LIMIT
        while not holds(rows := self.rows()):
            assert time.monotonic() < deadline, f"no {what}: {self.log()}"
            assert self._process.poll() is None, f"no {what}: {self.log()}"
            time.sleep(0.05)
        return rows

    def wait_for_size(self, size: int, steps: int = 5) -> Row:
        """Wait for more steps of so many ranks; returns the last row of them."""
        before = len(self.rows())
        known = sum(row["size"] == size for row in self.rows())
        rows = self.wait_for(
            f"steps of {size} ranks",
            lambda rows: (
                len(rows) > before
                and sum(row["size"] == size for row in rows) >= known + size * steps
            ),
        )
        return max((row for row in rows if row["size"] == size), key=lambda row: row["time"])

    def kill(self, rank: int, size: int) -> None:
        """Kill the process that was last seen as a rank of so many."""
        of_rank = [row for row in self.rows() if (row["rank"], row["size"]) == (rank, size)]
        os.kill(max(of_rank, key=lambda row: row["time"])["pid"], signal.SIGKILL)

    def end(self, limit: float = LIMIT) -> None:
        """Wait for the end of the job, which must succeed."""
        try:
            status = self._process.wait(limit)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(
                f"the job has not ended after {limit:.0f} s: {self.log()}"
            ) from error
        assert status == 0, self.log()

    def stop(self) -> None:
        """End all processes that are left."""
        with_workers = {row["pid"] for row in self.rows()}
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            for pid in with_workers:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self._log.close()

    def log(self) -> str:
        """The end of the output."""
        return (self._folder / "log").read_text(errors="replace")[-6000:]


def _with_this_module(environment: dict[str, str]) -> dict[str, str]:
    """Variables with which workers find `log_row`."""
    paths = [str(Path(__file__).resolve().parents[1]), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def end_after(last: Path, step: int) -> None:
    """Write the number of the last step, which workers read at any time."""
    new = last.with_suffix(".new")
    new.write_text(str(step))
    new.replace(last)


def log_row(folder: Path, parameters: bytes, **facts: Any) -> None:
    """Log a step of a worker, after it.

    Args:
        folder: of all rows.
        parameters: of the model, which are compared.
        facts: other columns; at least ``step``, ``rank``, ``size``, and ``life``, the time of the last
            reset.
    """
    row = {"time": time.time(), "pid": os.getpid(), "digest": hash(parameters), **facts}
    with (folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as log:
        print(json.dumps(row), file=log)
