"""Training jobs of horovodrun with scripts/train.py, run one after the other with a bar each."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from training.metrics import METRICS, Score

__all__ = ["ROOT", "Job", "JobFailedError", "progress_on", "run_job"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Job:
    """One training job.

    Attributes:
        title: name in messages.
        ranks: processes on this machine.
        folder: results, relative to the checkout; the log lies next to it.
        arguments: arguments of scripts/train.py, without ``--output``.
    """

    title: str
    ranks: int
    folder: Path
    arguments: tuple[str, ...]

    @property
    def log(self) -> Path:
        """File with its output, relative to the checkout."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def command(self, output: Path | None = None) -> list[str]:
        """Its command line, to be run in the checkout; ``output`` replaces its folder."""
        python = Path(sys.executable)
        if python.is_relative_to(ROOT):
            python = python.relative_to(ROOT)
        parts = [str(python.with_name("horovodrun")), "--gloo", "-np", str(self.ranks)]
        parts += [str(python), "scripts/train.py", *self.arguments]
        return [*parts, "--output", str(output or self.folder)]

    def summary(self) -> dict[str, Any] | None:
        """Its summary; None where it has not finished."""
        path = ROOT / self.folder / "summary.json"
        if not path.exists():
            return None
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return content


class JobFailedError(Exception):
    """A training job ended with an error; the text is for the user."""


def progress_on(console: Console) -> Progress:
    """Bars for ``run_job``; hidden where the output is no terminal."""
    return Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def run_job(job: Job, progress: Progress) -> dict[str, Any]:
    """Run one job from its start, showing its steps; returns its summary.

    Removes the old content of its folder. Raises JobFailedError with the end of its output.
    """
    began = time.monotonic()
    task = progress.add_task(job.title, total=None, state="starting")
    shutil.rmtree(ROOT / job.folder, ignore_errors=True)
    (ROOT / job.log).parent.mkdir(parents=True, exist_ok=True)
    with (ROOT / job.log).open("w", encoding="utf-8") as log:
        process = subprocess.Popen(job.command(), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                time.sleep(0.2)
                _follow(job, progress, task)
        finally:
            # horovodrun ends its ranks when it is terminated.
            process.terminate()
            process.wait()
    if process.returncode != 0:
        raise JobFailedError(
            f"{_last_words(ROOT / job.log)}\n\n{job.title} failed with exit status "
            f"{process.returncode}. Its last lines are above, its log is {job.log}; its command:\n"
            f"  {shlex.join(job.command())}"
        )
    summary = job.summary()
    assert summary is not None, "a job that ends with 0 has one"
    score = Score(summary["final_accuracy"], summary["final_test_bits"])
    state, steps = METRICS[summary["metric"]].show(score), summary["steps"]
    progress.update(task, total=steps, completed=steps, state=state)
    progress.stop_task(task)
    if progress.disable:
        progress.console.print(f"    {job.title}: {time.monotonic() - began:.0f} s", markup=False)
    return summary


def _last_words(log: Path) -> str:
    """The last lines of ranks in a log; without any, the last lines of horovodrun."""
    lines = log.read_text(encoding="utf-8").splitlines()
    # horovodrun ends with a traceback of its own code, which explains nothing.
    by_ranks = [line for line in lines if re.match(r"\[\d+\]<", line)]
    return "\n".join((by_ranks or lines)[-20:])


def _follow(job: Job, progress: Progress, task: Any) -> None:
    """Show the progress of a job, read from its files."""
    about, metrics = ROOT / job.folder / "run.json", ROOT / job.folder / "metrics.jsonl"
    if not (about.exists() and metrics.exists()):
        return
    total = json.loads(about.read_text("utf-8"))["total_steps"]
    steps = metrics.read_bytes().count(b'"kind": "step"')
    progress.update(task, total=total, completed=steps, state=f"{steps}/{total} steps")
