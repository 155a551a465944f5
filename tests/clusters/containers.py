"""Jobs in containers: docker/byteps/cluster and docker/hosts, and all that must be gone after them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENGINE = os.environ.get("GRADCOMP_CONTAINERS", "")
LIMIT = 400
END_LIMIT = 30
"""Seconds in which a job ends after the death of one of its containers."""

BYTEPS = ["docker/byteps/cluster"]
HOSTS = ["docker/hosts"]
DIGITS = ["--config", "configs/digits/cnn.yaml"]


@dataclass(frozen=True)
class Ended:
    """A job that has ended.

    Attributes:
        code: its exit code.
        output: all that it has printed.
        results: folder with the results of the first rank.
    """

    code: int
    output: str
    results: Path

    def summary(self) -> dict[str, Any]:
        """The summary of the only run; its ranks must have equal parameters."""
        assert self.code == 0, self.output
        (path,) = self.results.glob("*/summary.json")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


class Running:
    """A job, from its start on."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, results: Path) -> None:
        self.process = process
        self._log = log
        self._results = results

    @property
    def output(self) -> str:
        """All that it has printed so far."""
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: str, seconds: float = LIMIT) -> str:
        """Wait until the job has printed a text; returns it."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.output)) is None:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, f"no {pattern} after {seconds} s:\n{self.output}"
            time.sleep(0.5)
        return found[0]

    def kill(self, name: str) -> None:
        """Kill a container of the job."""
        job = self.wait_for(r"gradcomp-[0-9a-f]{8}")
        engine("kill", f"{job}-{name}")

    def end(self, seconds: float = LIMIT) -> Ended:
        """Wait for its end."""
        code = self.process.wait(seconds)
        return Ended(code, self.output, self._results)


def engine(*arguments: str) -> str:
    """Run a command of the container engine; returns its output."""
    assert ENGINE, "start these tests with scripts/test cluster"
    done = subprocess.run([ENGINE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def job(command: Sequence[str], folder: Path) -> Iterator[Running]:
    """Start a job; nothing of it may be left when it has ended."""
    log = folder / "output"
    results = folder / "results"
    before = everything()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command[:1], "--results", str(results), *command[1:]],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Pytest in the background of a shell ignores SIGINT, and bash could then not trap it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        yield Running(process, log, results)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(LIMIT)
    assert everything() == before


def everything() -> dict[str, list[str]]:
    """Containers, networks, volumes, images without a name, and files in /dev/shm."""
    return {
        "containers": engine("ps", "--all", "--format", "{{.Names}}").split(),
        "networks": sorted(engine("network", "ls", "--format", "{{.Name}}").split()),
        "volumes": sorted(engine("volume", "ls", "--quiet").split()),
        "images": engine("images", "--quiet", "--filter", "dangling=true").split(),
    }


def run(command: Sequence[str], folder: Path) -> Ended:
    """Run a job to its end."""
    with job(command, folder) as running:
        return running.end()
