"""Runs one trial: a job with a fault, its end, and everything that it leaves behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from chaos.faults import BAD_CHECKPOINTS, RANKS, RESUMED, SAVE_EVERY, STEPS, Plan, named_cause

__all__ = ["Result", "end_all", "reference", "run"]

_MARK = "GRADCOMP_CHAOS_TRIAL"
"""Environment variable of all processes of a trial."""

_ORPHAN_SECONDS = 3.0
"""Grace period of a job's processes after the end of its launcher."""

_POLL_SECONDS = 0.2

_STOPPED_SECONDS = 8
"""Limit of BytePS' launcher for processes that are stopped; its default is longer."""

_WORKER = Path(__file__).with_name("worker.py")

# Stock horovodrun imports TensorFlow to find out whether Horovod has Gloo, which takes seconds.
_HOROVODRUN = (
    "import sys; from horovod.runner import launch; "
    "launch.gloo_built = lambda verbose=False: True; sys.exit(launch.run_commandline())"
)

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # The documented limits of Horovod for ranks that do not answer.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "3",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "8",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "15",
}


@dataclass(frozen=True)
class _End:
    """The end of a job: exit status (None at the time limit), output, and things left."""

    status: int | None
    output: str
    orphans: list[str]
    shared: list[str]


@dataclass
class Result:
    """The end of a trial.

    Attributes:
        plan: the trial.
        end: "ended" with an error, "recovered", "silent" (an end as if nothing had been wrong, but
            with other weights or none), or "hung" at the time limit.
        named: whether the output names the cause; True for a recovered job.
        seconds: from the fault to the end of the launcher.
        orphans: command lines of processes left.
        files: temporary files and shared memory left.
        output: output of the job.
    """

    plan: Plan
    end: str
    named: bool
    seconds: float
    orphans: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def good(self) -> bool:
        """Whether the job ended or recovered, named the cause and left no process."""
        return self.end in ("ended", "recovered") and self.named and not self.orphans

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON."""
        return {**asdict(self), "good": self.good}


def _command(plan: Plan, folder: Path, timeout: float) -> list[str]:
    program = [str(_WORKER), str(folder / "plan.json"), str(folder)]
    ranks = str(RANKS[plan.engine])
    python = sys.executable
    if plan.engine == "horovod":
        return [python, "-c", _HOROVODRUN, "--gloo", "-np", ranks, python, *program]
    if plan.engine == "ddp":
        launcher = [python, "-m", "torch.distributed.run", "--standalone"]
        return [*launcher, f"--nproc_per_node={ranks}", "--shutdown-timeout=3", *program]
    launcher = [python, "-m", "byteps_compressors.launch", "--workers", ranks]
    launcher += ["--logs", str(folder / "logs"), "--timeout", str(0.7 * timeout)]
    launcher += ["--stopped-timeout", str(_STOPPED_SECONDS)]
    return [*launcher, "--", python, *program]


def reference(engine: str, folder: Path, timeout: float) -> str:
    """Run the job without a fault; returns the digest of the weights, and keeps its checkpoints.

    Raises:
        RuntimeError: the job failed.
    """
    plan = Plan(-1, engine)
    shutil.rmtree(folder, ignore_errors=True)
    end = _job(plan, folder, timeout)
    digests = _digests(folder)
    if end.status != 0 or len(digests) != RANKS[engine] or len(set(digests)) != 1:
        raise RuntimeError(f"{engine} fails without a fault, status {end.status}:\n{end.output}")
    return digests[0]


def run(plan: Plan, folder: Path, good: Path, digest: str, timeout: float) -> Result:
    """Run a trial.

    Args:
        plan: the trial.
        folder: its own folder; removed at the end if the trial was good.
        good: folder of the reference job, for checkpoints.
        digest: digest of the reference job's weights.
        timeout: time limit in seconds.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if plan.fault in BAD_CHECKPOINTS:
        shutil.copytree(
            good / "checkpoints",
            folder / "checkpoints",
            ignore=shutil.ignore_patterns(f"step-{STEPS:012d}"),
        )
        _damage(plan, folder / "checkpoints")
    began = time.time()
    job = _job(plan, folder, timeout)
    ended, output = time.time(), job.output
    for log in sorted(folder.glob("logs/*.log")):
        output += f"\n--- {log.name}\n{log.read_text(errors='replace')}"
    if (folder / "fault.txt").exists():
        began = float((folder / "fault.txt").read_text())
    digests = _digests(folder)
    if job.status is None:
        end = "hung"
    elif job.status != 0:
        end = "ended"
    elif digests == [digest] * RANKS[plan.engine]:
        end = "recovered"
    else:
        end = "silent"
    named = end == "recovered" or (end == "ended" and named_cause(plan, output))
    temporary = [*(folder / "tmp").rglob("*"), *(folder / "checkpoints").rglob("*.partial")]
    left = sorted(str(path.relative_to(folder)) for path in temporary if not path.is_dir())
    left += job.shared
    result = Result(plan, end, named, ended - began, job.orphans, left, output)
    if result.good:
        shutil.rmtree(folder)
    return result


def _digests(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("end-*.txt"))]


def _damage(plan: Plan, checkpoints: Path) -> None:
    file, older = (
        next((checkpoints / f"step-{step:012d}").glob(f"rank-{plan.rank:05d}*"))
        for step in (RESUMED, RESUMED - SAVE_EVERY)
    )
    data = bytearray(file.read_bytes())
    position = int(plan.amount * len(data))
    if plan.fault == "flip":
        data[position] ^= 0x10
    elif plan.fault == "truncate":
        del data[position:]
    else:
        data[:] = older.read_bytes()
    file.write_bytes(data)


def _job(plan: Plan, folder: Path, timeout: float) -> _End:
    """Run a job to its end, or kill it at the time limit."""
    (folder / "tmp").mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(asdict(plan)))
    mark = str(folder.resolve())
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **_ENVIRONMENT, _MARK: mark, "PYTHONPATH": paths}
    environment["TMPDIR"] = str(folder / "tmp")
    # A file, not a pipe: a pipe stays open as long as any process that is left.
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            _command(plan, folder, timeout),
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    shared: set[Path] = set()
    try:
        deadline = time.monotonic() + timeout
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            shared |= _shared_memory(mark)
        status = process.returncode
        if status is not None:
            _wait_for(mark)
        left = _processes(mark) if status is not None else []
        orphans = [f"{orphan.pid}: {_command_line(orphan)}" for orphan in left]
    finally:
        end_all(folder)
        process.wait()
    printed = (folder / "output.txt").read_text(errors="replace")
    return _End(status, printed, orphans, sorted(str(path) for path in shared if path.exists()))


def _shared_memory(mark: str) -> set[Path]:
    """Files in /dev/shm that processes of a trial have mapped."""
    found = set()
    for process in _processes(mark):
        with suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            found |= {Path(path) for path in re.findall(r"/dev/shm/\S+", maps)}
    return found


def _wait_for(mark: str) -> None:
    """Wait until no process of a trial is left, or for the grace period."""
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while time.monotonic() < deadline and _processes(mark):
        time.sleep(0.1)


def end_all(folder: Path) -> None:
    """Kill all processes of the trials in a folder."""
    for process in _processes(str(folder.resolve())):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _processes(mark: str) -> list[psutil.Process]:
    """The living processes of a trial, or of all trials in a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if f"{process.environ().get(_MARK, '')}/".startswith(f"{mark}/"):
                found.append(process)
    return found


def _command_line(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return "ended"
