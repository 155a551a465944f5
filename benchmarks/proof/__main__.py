r"""Compressed next to uncompressed training on data that people know.

  python benchmarks/proof run --list
  python benchmarks/proof run --cells 'fashion-cnn/*/2 ranks/*' 'kjv-1m/adamw/*/auto/*'
  python benchmarks/proof report
  python benchmarks/proof times --task kjv-1m --ranks 4 --rates 100mbit,1gbit

Fashion-MNIST (apt-get install dataset-fashion-mnist) and the King James Bible (apt-get install
bible-kjv). All ranks of a run are in one process, with one thread of PyTorch. Runs of one seed have
the same initial values and batches with every spec. Finished runs are lines of the file --results
and are not made again; an interrupted run is. `report` writes results.md and results.png beside it.
`times` takes some steps with all specs on several hosts of this machine behind slow links, which needs root, and
writes times.json and times.md beside it.

Exit codes: 0 done, 1 runs are missing that a report needs or a timed job failed, 2 wrong arguments, no data or no
hosts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gradcomp.errors import ConfigError
from netlab import JobError, LabError
from proof.cells import LOCAL_STEPS, SPECS, TASKS, Cell, chosen
from proof.report import write
from proof.store import Row, append, read, seconds_left
from proof.times import ALONE, measure, write_times
from proof.training import train, train_local

ROOT = Path(__file__).resolve().parents[2]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="make the runs that are not finished")
    run.add_argument(
        "--cells",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="only those of these names, with * for anything, such as 'kjv-1m/*/auto/*'",
    )
    run.add_argument("--list", action="store_true", help="print the names of runs, and no more")
    report = commands.add_parser("report", help="tables and the picture of the finished runs")
    times = commands.add_parser("times", help="time of steps on slow links")
    times.add_argument("--task", choices=TASKS, default="kjv-1m", help="default: %(default)s")
    times.add_argument(
        "--optimizer", choices=("sgd", "adamw"), default="adamw", help="default: %(default)s"
    )
    times.add_argument("--ranks", type=int, default=4, metavar="N", help="default: %(default)s")
    times.add_argument(
        "--rates", default="100mbit,1gbit", metavar="RATE,...", help="default: %(default)s"
    )
    times.add_argument(
        "--specs", nargs="+", default=[ALONE, *SPECS], choices=[ALONE, *SPECS], metavar="NAME"
    )
    times.add_argument(
        "--logs", type=Path, default=Path("runs/proof-times"), help="default: %(default)s"
    )
    for command in (run, report, times):
        command.add_argument(
            "--results",
            type=Path,
            default=ROOT / "docs/results/proof/results.jsonl",
            metavar="FILE",
            help="default: docs/results/proof/results.jsonl",
        )
    return parser.parse_args(arguments)


def make(cell: Cell) -> Row:
    """One run."""
    setup = TASKS[cell.task]
    begin = time.monotonic()
    settings: dict[str, Any] = {
        "lr": setup.rates[cell.optimizer],
        "spec": SPECS[cell.spec],
        "ranks": cell.ranks,
        "steps": cell.steps,
        "seed": cell.seed,
    }
    if cell.spec in LOCAL_STEPS:
        every = LOCAL_STEPS[cell.spec]
        result = train_local(setup.task(), cell.optimizer, every=every, **settings)
    else:
        result = train(setup.task(), cell.optimizer, **settings)
    seconds = round(time.monotonic() - begin, 1)
    return Row(cell, result.loss, result.accuracy, round(result.ratio, 3), seconds)


def make_all(cells: Sequence[Cell], path: Path) -> None:
    """The runs that are not finished, with what is left after each."""
    rows = read(path)
    left = [cell for cell in cells if cell not in rows]
    print(f"{len(cells) - len(left)} of {len(cells)} runs are finished", flush=True)
    while left:
        cell = left.pop(0)
        row = rows[cell] = make(cell)
        append(path, row)
        seconds, unknown = seconds_left(left, rows.values())
        loss = "not finite" if row.loss is None else f"{row.loss:.4f}"
        more = f", beside {unknown} of unknown time" if unknown else ""
        print(
            f"{cell.name}: {loss}, {row.ratio:.1f} times fewer bytes, {row.seconds:.0f} s; "
            f"{len(left)} runs left, {seconds / 60:.0f} min{more}",
            flush=True,
        )


def main(arguments: Sequence[str]) -> int:
    """Run or report; returns the exit code."""
    options = parse(arguments)
    try:
        if options.command == "run":
            cells = chosen(options.cells)
            if options.list:
                finished = read(options.results)
                for cell in cells:
                    print(f"{cell.name}{': finished' if cell in finished else ''}")
                return 0
            torch.set_num_threads(1)
            make_all(cells, options.results)
            return 0
        if options.command == "times":
            for rate in options.rates.split(","):
                setting = (options.task, options.optimizer, options.ranks, rate)
                times = measure(*setting, options.specs, options.logs)
                write_times(times, options.results.parent)
                for row in times:
                    print(f"{rate}, {row.spec}: {1e3 * row.step:.0f} ms a step", flush=True)
            return 0
        rows = read(options.results)
        if not rows:
            print(f"proof: {options.results} has no finished runs; make some", file=sys.stderr)
            return 1
        write(list(rows.values()), options.results.parent)
    except (ConfigError, LabError) as error:
        print(f"proof: {error}", file=sys.stderr)
        return 2
    except JobError as error:
        print(f"proof: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
