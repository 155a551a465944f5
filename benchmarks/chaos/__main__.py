"""Seeded faults in small training jobs: does every process end, and is the cause named?

  python benchmarks/chaos --trials 200 --jobs 1

Each trial starts a job of two or three ranks, which trains a small network and saves checkpoints.
One rank has a fault: killed, stopped, late, another configuration, a full disk, a damaged frame, or
a damaged or older checkpoint. A good trial ends with an error that names the rank or file, or ends
with the same weights as a job without a fault. It leaves no process. Exit codes: 0 all trials were
good; 1 some were not; 2 wrong arguments.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.faults import ENGINES, FAULTS, pairs, plan
from chaos.report import table, write
from chaos.trial import Result, end_all, reference, run

_LAST_LINES = 30

console = Console(width=None if sys.stdout.isatty() else 120)


def _words(text: str, known: tuple[str, ...], option: str) -> list[str]:
    """The items of a comma-separated list."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise typer.BadParameter(
                f"got {word!r}; there are {', '.join(known)}", param_hint=option
            )
    if not words:
        raise typer.BadParameter(f"empty; there are {', '.join(known)}", param_hint=option)
    return words


def main(
    trials: Annotated[int, typer.Option(min=1, help="Number of trials.")] = 26,
    seed: Annotated[int, typer.Option(help="Determines all trials.")] = 0,
    engines: Annotated[str, typer.Option(metavar="NAME,...")] = ",".join(ENGINES),
    faults: Annotated[str, typer.Option(metavar="NAME,...")] = ",".join(FAULTS),
    jobs: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which a trial counts as hung.")
    ] = 120.0,
    only: Annotated[
        int | None, typer.Option(min=0, help="Run this trial alone, and print its output.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder of results.json and results.md.")] = Path(
        "benchmarks/chaos"
    ),
) -> None:
    """Run trials, print their table and write it to files."""
    engine_names = _words(engines, ENGINES, "--engines")
    fault_names = _words(faults, FAULTS, "--faults")
    if not pairs(engine_names, fault_names):
        raise typer.BadParameter(f"{engines} cannot have it", param_hint="--faults")
    numbers = range(trials) if only is None else [only]
    plans = [plan(number, seed, engine_names, fault_names) for number in numbers]
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    _end_with_jobs(folder)
    results: list[Result] = []
    with Progress(console=console) as progress, ThreadPoolExecutor(jobs) as pool:
        used = sorted({planned.engine for planned in plans})
        task = progress.add_task("jobs without a fault", total=len(used))
        digests = {}
        for engine in used:
            digests[engine] = reference(engine, folder / f"good-{engine}", timeout)
            progress.advance(task)
        task = progress.add_task("trials", total=len(plans))
        running = [
            pool.submit(
                run,
                planned,
                folder / f"trial-{planned.number}",
                folder / f"good-{planned.engine}",
                digests[planned.engine],
                timeout,
            )
            for planned in plans
        ]
        for done in as_completed(running):
            result = done.result()
            results.append(result)
            progress.advance(task)
            if not result.good or only is not None:
                _show(result)
    results.sort(key=lambda result: result.plan.number)
    console.print(table(results))
    command = shlex.join(["python", "benchmarks/chaos", *sys.argv[1:]])
    if only is None:
        write(results, command, output)
    bad = [result for result in results if not result.good]
    if bad:
        console.print(f"folders of the {len(bad)} bad trials: {folder}")
    raise typer.Exit(1 if bad else 0)


def _end_with_jobs(folder: Path) -> None:
    """Make SIGINT and SIGTERM end the jobs, too."""

    def end(number: int, frame: FrameType | None) -> None:
        end_all(folder)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def _show(result: Result) -> None:
    """Print a trial's plan and the end of its output."""
    console.print(f"{result.plan}: {result.end}, named: {result.named}", markup=False)
    for process in result.orphans:
        console.print(f"  left: {process}", markup=False)
    for line in result.output.splitlines()[-_LAST_LINES:]:
        console.print(f"  {line}", markup=False)


if __name__ == "__main__":
    typer.run(main)
