"""Train a small network on two Horovod ranks, without and with gradient compression.

Each run is one job of horovodrun with scripts/train.py, which measures the bytes it sends.
Prints a table and writes a picture to runs/quickstart.
"""

from __future__ import annotations

import argparse
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

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from plots import plot_runs

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = Path("runs") / "quickstart"
CONFIG = Path("configs") / "digits" / "cnn.yaml"
RANKS = 2


@dataclass(frozen=True)
class Run:
    """One training job."""

    name: str
    spec: str | None

    @property
    def title(self) -> str:
        """What the user sees."""
        return self.spec or "uncompressed"

    @property
    def folder(self) -> Path:
        """Where its results are, seen from the checkout."""
        return OUTPUT / self.name

    @property
    def log(self) -> Path:
        """Where its output is, seen from the checkout."""
        return OUTPUT / f"{self.name}.log"

    def command(self, output: Path) -> list[str]:
        """Its command line, to be run in the checkout."""
        python = Path(".venv") / "bin" / "python"
        parts = [str(Path(".venv") / "bin" / "horovodrun"), "--gloo", "-np", str(RANKS)]
        parts += [str(python), "scripts/train.py", "--config", str(CONFIG)]
        parts += ["--output", str(output)]
        if self.spec is not None:
            parts += ["--compression", self.spec]
        return parts


RUNS = (
    Run("uncompressed", None),
    Run("topk", "residual|topk(ratio=0.01)"),
    Run("randomk", "residual|randomk(ratio=0.1)"),
    Run("fp16", "fp16"),
)


class RunFailedError(Exception):
    """A training job ended with an error; the text is for the user."""


def train(run: Run, progress: Progress) -> dict[str, Any]:
    """Run one job, showing its steps; returns its summary.

    Raises RunFailedError with the end of its output.
    """
    task = progress.add_task(run.title, total=None, state="starting")
    shutil.rmtree(ROOT / run.folder, ignore_errors=True)
    with (ROOT / run.log).open("w", encoding="utf-8") as log:
        job = subprocess.Popen(
            run.command(run.folder), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while job.poll() is None:
                time.sleep(0.2)
                follow(run, progress, task)
        finally:
            # horovodrun ends its ranks when it is told to end.
            job.terminate()
            job.wait()
    if job.returncode != 0:
        raise RunFailedError(
            f"{last_words(ROOT / run.log)}\n\n{run.title} failed with exit status "
            f"{job.returncode}. Its last lines are above, its log is {run.log}; its command:\n"
            f"  {shlex.join(run.command(run.folder))}"
        )
    summary: dict[str, Any] = json.loads((ROOT / run.folder / "summary.json").read_text("utf-8"))
    accuracy = f"test accuracy {summary['final_accuracy']:.4f}"
    steps = summary["steps"]
    progress.update(task, total=steps, completed=steps, state=accuracy)
    progress.stop_task(task)
    return summary


def last_words(log: Path) -> str:
    """The last lines that ranks have written to a log, else the last of horovodrun's own."""
    lines = log.read_text(encoding="utf-8").splitlines()
    # horovodrun ends with a traceback through itself, which explains nothing.
    by_ranks = [line for line in lines if re.match(r"\[\d+\]<", line)]
    return "\n".join((by_ranks or lines)[-20:])


def follow(run: Run, progress: Progress, task: Any) -> None:
    """Show how far a job has come, going by the files it writes."""
    about, metrics = ROOT / run.folder / "run.json", ROOT / run.folder / "metrics.jsonl"
    if not (about.exists() and metrics.exists()):
        return
    total = json.loads(about.read_text("utf-8"))["total_steps"]
    steps = metrics.read_bytes().count(b'"kind": "step"')
    progress.update(task, total=total, completed=steps, state=f"{steps}/{total} steps")


def table_of(summaries: dict[Run, dict[str, Any]]) -> Table:
    """The comparison that the user came for."""
    table = Table(
        box=SIMPLE_HEAD,
        title=f"digits-cnn on {RANKS} ranks (Horovod, Gloo)",
        padding=(0, 0, 0, 1),  # fits 80 columns
    )
    table.add_column("run", no_wrap=True)
    for heading in (
        "test\naccuracy",
        "bytes sent\na step [1]",
        "times\nfewer",
        "over TCP\n[2]",
        "median\nstep [3]",
    ):
        table.add_column(escape(heading), justify="right", no_wrap=True)
    for run, summary in summaries.items():
        tcp = summary["tcp_bytes_per_step"]
        table.add_row(
            run.title,
            f"{summary['final_accuracy']:.2%}",
            decimal(round(summary["sent_bytes_per_step"])),
            f"{summary['compression_ratio']:.1f}x",
            "unknown" if tcp is None else decimal(round(tcp)),
            f"{1000 * summary['median_step_seconds']:.1f} ms",
        )
    return table


def main() -> int:
    """Run the comparison; returns the exit code."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    console = Console(highlight=False, soft_wrap=True)
    (ROOT / OUTPUT).mkdir(parents=True, exist_ok=True)
    summaries: dict[Run, dict[str, Any]] = {}
    progress = Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    console.print(f"==> Training digits-cnn on {RANKS} ranks, {len(RUNS)} times")
    try:
        with progress:
            for run in RUNS:
                began = time.monotonic()
                summaries[run] = train(run, progress)
                if not console.is_terminal:
                    console.print(f"    {run.title}: {time.monotonic() - began:.0f} s")
    except RunFailedError as error:
        console.print(str(error), markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    picture = OUTPUT / "comparison.png"
    plot_runs({run.title: ROOT / run.folder for run in RUNS}, ROOT / picture)

    console.print(table_of(summaries))
    console.print(
        "[1] gradients one rank hands to the collectives, with headers, indices and tokens\n"
        "[2] what one rank's TCP connections really carry, with Horovod's own talk\n"
        "[3] both ranks run on this machine: there is no slow network to save time on\n"
        "\n"
        f"Loss and bytes over the steps: {picture}\n"
        f"Configuration, metrics and log of each run: {OUTPUT}\n"
        "To train by hand, and to vary it:\n"
        f"  {shlex.join(RUNS[1].command(Path('runs') / 'mine'))}",
        markup=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
