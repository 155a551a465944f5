"""The sweep of benchmarks/e2e, on real hosts where this machine can have them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import HERE, CaseJob
from workers import proof_times

from netlab import JobError, Lab, LabError, run

_MPI_JOB = """
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.ones(1000) * hvd.rank(), name="x", op=hvd.Sum)
assert float(total.sum()) == 1000 and hvd.mpi_enabled() and hvd.local_size() == 1
hvd.shutdown()
print("a host of", hvd.__name__)
"""

_DYING = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


def test_mpi_between_hosts(tmp_path: Path) -> None:
    if reason := Lab.unavailable():
        with pytest.raises(LabError, match=re.escape(reason)), Lab(2, "1gbit"):
            pass
        return
    with Lab(2, "1gbit") as lab:
        run(lab, "mpi", 2, [sys.executable, "-c", _MPI_JOB], tmp_path, 240)
    assert (tmp_path / "mpirun.log").read_text().count("a host of") == 2


def test_killed_rank_is_named_while_others_wait(tmp_path: Path) -> None:
    if Lab.unavailable():
        return
    with Lab(2, "1gbit") as lab, pytest.raises(JobError, match=r"rank-1 was killed, .* memory"):
        run(lab, "torch", 2, [sys.executable, "-c", _DYING], tmp_path, 60)


def test_terminated_lab_leaves_nothing(tmp_path: Path) -> None:
    if Lab.unavailable():
        return
    benchmark = str(HERE.parents[1] / "benchmarks/netlab")
    command = [sys.executable, benchmark, "--engine", "torch", "--logs", str(tmp_path), "--"]
    command += [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    with subprocess.Popen(command) as lab:
        logs = [tmp_path / f"rank-{rank}.log" for rank in range(2)]
        while lab.poll() is None and not all(log.exists() and log.read_text() for log in logs):
            time.sleep(0.1)
        lab.terminate()
        assert lab.wait(60) == 128 + signal.SIGTERM
    hosts = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert "gradcomp" not in hosts.stdout


@pytest.mark.parametrize("case", proof_times.cases)
def test_times_of_the_proof(ddp2: CaseJob, case: str) -> None:
    ddp2.check(case)


@pytest.mark.full
def test_quick(tmp_path: Path) -> None:
    benchmark = str(HERE.parents[1] / "benchmarks/e2e")
    done = subprocess.run(
        [sys.executable, benchmark, "--quick", "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr  # 1 where bytes were miscounted
    simulated = bool(Lab.unavailable())
    assert ("SIMULATED" in done.stdout) == simulated
    rows = {row["contender"]: row for row in json.loads((tmp_path / "results.json").read_text())}
    assert set(rows) == {"Horovod", "Horovod fp16", "top-k 10%"}
    for row in rows.values():
        assert row.get("simulated", False) == simulated
        assert row["median_seconds"] > 0
    assert rows["top-k 10%"]["interface_bytes"] < rows["Horovod"]["interface_bytes"] / 5
    assert (tmp_path / "resnet50-2.png").exists()
    assert "| top-k 10% |" in (tmp_path / "resnet50-2.md").read_text()
