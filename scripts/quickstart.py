"""Train a small network on two Horovod ranks, without and with gradient compression.

Each run is a job of horovodrun with scripts/train.py, which counts the bytes sent. Prints a table
and writes a picture to runs/quickstart.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from gradcomp.codec.spec import parse
from gradcomp.errors import SpecError
from gradcomp.tools.report import report_page
from gradcomp.tools.run_folder import read_run
from results.jobs import ROOT, Job, JobFailedError, progress_on, run_job
from results.plots import plot_runs

OUTPUT = Path("runs") / "quickstart"
RANKS = 2


def job_of(name: str, spec: str | None) -> Job:
    """The training job of one spec; None: uncompressed."""
    arguments = ["--config", "configs/digits/cnn.yaml"]
    if spec is not None:
        arguments += ["--compression", spec]
    return Job(spec or "uncompressed", RANKS, OUTPUT / name, tuple(arguments))


COMPRESSED = ("residual|topk(ratio=0.01)", "residual|randomk(ratio=0.1)", "fp16")


def jobs_of(specs: Sequence[str]) -> list[Job]:
    """The training jobs: one uncompressed, one of each spec."""
    folders = [f"run-{number}" for number in range(1, len(specs) + 1)]
    return [job_of("uncompressed", None), *map(job_of, folders, specs)]


def table_of(summaries: dict[Job, dict[str, Any]]) -> Table:
    """The comparison: a row for each run."""
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
    for job, summary in summaries.items():
        tcp = summary["tcp_bytes_per_step"]
        table.add_row(
            job.title,
            f"{summary['final_accuracy']:.2%}",
            decimal(round(summary["sent_bytes_per_step"])),
            f"{summary['compression_ratio']:.1f}x",
            "unknown" if tcp is None else decimal(round(tcp)),
            f"{1000 * summary['median_step_seconds']:.1f} ms",
        )
    return table


def main() -> int:
    """Run the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--compression",
        action="append",
        metavar="SPEC",
        help="a spec to train with, such as 'residual|polar(rate=0.25)', next to the uncompressed "
        f"run; repeatable (default: {', '.join(COMPRESSED)})",
    )
    specs = parser.parse_args().compression or COMPRESSED
    for spec in specs:
        try:
            parse(spec)
        except SpecError as error:
            parser.error(f"--compression: {error}")
    jobs = jobs_of(specs)
    console = Console(highlight=False, soft_wrap=True)
    summaries: dict[Job, dict[str, Any]] = {}
    console.print(f"==> Training digits-cnn on {RANKS} ranks, {len(jobs)} times")
    try:
        with progress_on(console) as progress:
            for job in jobs:
                summaries[job] = run_job(job, progress)
    except JobFailedError as error:
        console.print(str(error), markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    picture = OUTPUT / "comparison.png"
    plot_runs({job.title: ROOT / job.folder for job in jobs}, ROOT / picture)
    report = OUTPUT / "report.html"
    runs = [replace(read_run(ROOT / job.folder), label=job.title) for job in jobs]
    (ROOT / report).write_text(report_page(runs), encoding="utf-8")

    console.print(table_of(summaries))
    console.print(
        "[1] handed to collectives by one rank: values, indices, frame headers and tokens\n"
        "[2] sent by one rank's TCP sockets, Horovod's control messages included\n"
        "[3] both ranks run on this machine: compression costs time and saves none\n"
        "\n"
        f"Loss and bytes over the steps: {picture}\n"
        f"The same, accuracy, time and settings, for a browser: {report}\n"
        f"Configuration, metrics and log of each run: {OUTPUT}\n"
        "To train with options of your own:\n"
        f"  {shlex.join(jobs[1].command(Path('runs') / 'mine'))}",
        markup=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
