"""Starts jobs of several processes as users do, and collects the reports of their ranks.

No job outlives its time limit: then every process of it is killed, and the test fails with all that
the job has printed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.forks import TORCH, python, running_forks

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

PATHS = [ROOT, HERE, HERE.parent, HERE.parent / "golden"]
"""PYTHONPATH of jobs: gradcomp as it is here, ``workers``, ``support`` and the readers of reference cases."""

LIMIT = 500.0
"""Seconds that a job may take on a slow machine; jobs that do well need a small part of it."""

# Ranks that wait for messages leave the processor to others. No --tag-output: mpirun puts a tag
# wherever one of its reads ends, in the middle of a line too.
_YIELD = ["--mca", "mpi_yield_when_idle", "1"]
_MPIRUN = ["--oversubscribe", "--bind-to", "none", *_YIELD]

HOROVODRUN = (sys.executable, str(HERE / "horovodrun.py"))

LAUNCHERS = {
    None: lambda ranks: [],
    "gloo": lambda ranks: [*HOROVODRUN, "--gloo", "-np", str(ranks)],
    # Two hosts for Horovod: two names of this machine.
    "gloo_hosts": lambda ranks: [
        *(*HOROVODRUN, "--gloo", "-np", str(ranks)),
        *("-H", f"localhost:{ranks // 2},127.0.0.1:{ranks // 2}"),
    ],
    "torchrun": lambda ranks: [
        *(*python(), str(HERE / "torchrun.py"), "--standalone"),
        *(f"--nproc_per_node={ranks}", "--no-python"),
    ],
    "mpi": lambda ranks: [_on_path("mpirun"), *_MPIRUN, "-np", str(ranks)],
}

ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
    "PYTHONFAULTHANDLER": "1",
    "OMP_NUM_THREADS": "1",
    # By default a rank that gets no processor for 30 s ends the job.
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "240",
    # Ranks that wait for each other say so, with the names of the requests.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "15",
}


@dataclass(frozen=True)
class Finished:
    """A job that has ended."""

    status: int
    output: str
    seconds: float


@dataclass(frozen=True)
class CaseJob:
    """A job of ranks that ran cases (see `workers.harness`) and reported on each."""

    finished: Finished
    reports: list[dict[str, dict[str, Any]]]

    def check(self, case: str) -> list[Any]:
        """The value that each rank returned from the case; fails the test unless all ranks passed it."""
        problems = []
        for rank, report in enumerate(self.reports):
            if case not in report:
                problems.append(
                    f"rank {rank} did not finish it; the job printed:\n{self.finished.output}"
                )
            elif report[case]["error"]:
                problems.append(f"rank {rank}: {report[case]['error']}")
        if problems:
            pytest.fail("\n".join([f"case {case}", *problems]), pytrace=False)
        return [report[case]["value"] for report in self.reports]


def start(
    command: Sequence[str | Path],
    ranks: int = 1,
    launcher: str | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    imported: tuple[str, ...] = TORCH,
) -> subprocess.Popen[str]:
    """Start ``command``, the arguments of Python, on a number of ranks, with modules ready (see `support.forks`)."""
    full = [*LAUNCHERS[launcher](ranks), *python(imported), *map(str, command)]
    return subprocess.Popen(
        full,
        env={**os.environ, **ENVIRONMENT, **(environment or {})},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def finish(process: subprocess.Popen[str], limit: float = LIMIT) -> Finished:
    """Wait for a job; at the limit, or when the test is stopped, nothing of it stays behind."""
    began = time.monotonic()
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        output = _kill(process)
        pytest.fail(f"still running after {limit:.0f} s; it printed:\n{output}", pytrace=False)
    except BaseException:
        _kill(process)
        raise
    return Finished(process.returncode, output, time.monotonic() - began)


def run(
    command: Sequence[str | Path],
    ranks: int = 1,
    launcher: str | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    limit: float = LIMIT,
    imported: tuple[str, ...] = TORCH,
) -> Finished:
    """Start a job, and wait for it."""
    return finish(start(command, ranks, launcher, environment, cwd, imported), limit)


def cases_in(module: str) -> list[str]:
    """The names of the cases in a module of ``workers`` that had better not be imported here."""
    text = (HERE / "workers" / f"{module}.py").read_text()
    return re.findall(r"^@cases\ndef (\w+)", text, re.MULTILINE)


def run_cases(
    modules: Sequence[str],
    ranks: int,
    launcher: str,
    folder: Path,
    shared: Path,
    harness: Sequence[str] = ("-m", "workers.harness"),
    imported: tuple[str, ...] = TORCH,
    environment: Mapping[str, str] | None = None,
) -> CaseJob:
    """Run all cases of some modules of ``workers`` in one job.

    Args:
        modules: names of modules.
        ranks: number of ranks.
        launcher: one of `LAUNCHERS`.
        folder: where the ranks write their reports.
        shared: a folder for files from one job to another; cases find it as `harness.shared`.
        harness: the arguments of Python that name the program.
        imported: see `support.forks`.
        environment: for the ranks.
    """
    # A warning of ours would reach every user on every rank.
    command = ["-W", "error", *harness, folder, shared, *modules]
    finished = run(command, ranks, launcher, environment, imported=imported)
    return CaseJob(finished, read_reports(folder, ranks))


def read_reports(folder: Path, ranks: int) -> list[dict[str, dict[str, Any]]]:
    """Each rank's report, by case; empty where a rank has written none."""
    reports = []
    for rank in range(ranks):
        path = folder / f"rank{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        reports.append({row["case"]: row for row in map(json.loads, lines)})
    return reports


def _kill(process: subprocess.Popen[str]) -> str:
    """Kill a running job and all its descendants (launchers give ranks sessions of their own), and
    return what it has printed."""
    # All forks are this job's.
    for member in [
        *psutil.Process(process.pid).children(recursive=True),
        *running_forks(),
        process,
    ]:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    return process.communicate()[0]


def _on_path(program: str) -> str:
    found = shutil.which(program)
    assert found, f"{program} is not on PATH; on Debian: apt-get install openmpi-bin"
    return found
