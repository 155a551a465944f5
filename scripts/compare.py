"""Compare compressors on one task: several runs of scripts/train.py, each over several seeds.

  .venv/bin/python scripts/compare.py --task configs/digits/cnn.yaml --np 2 --seeds 3 \\
      --run uncompressed --run fp16=fp16 --run "DGC 0.1%=configs/dgc/wm5.yaml" \\
      --output runs/compare

Prints a table, and writes it with a picture to OUTPUT/comparison.md and comparison.png. Runs
that are finished in OUTPUT are kept: the same command goes on where it was interrupted, and
one with further runs or seeds trains only those. Exit codes: 0 done, 1 a run has failed, 2
wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from gradcomp.config.compose import compose
from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError, GradcompError
from results.jobs import ROOT, Job, JobFailedError, progress_on, run_job
from results.plots import plot_comparison
from training.metrics import CROSS_ENTROPY, METRICS, Metric, read_rows
from training.settings.train import TrainSettings

UNCOMPRESSED = "uncompressed"


@dataclass
class Contender:
    """One row of the comparison: its configuration, and its runs so far."""

    name: str
    config: Path | None = None
    spec: str | None = None
    folders: list[Path] = field(default_factory=list)
    """Output folders of its finished runs."""
    summaries: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0
    """Number of failed runs."""

    @property
    def slug(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-.")

    def add(self, job: Job, summary: dict[str, Any]) -> None:
        """Add a finished run."""
        self.folders.append(ROOT / job.folder)
        self.summaries.append(summary)


def contender_of(text: str) -> Contender:
    """Parse ``--run``: NAME=SPEC, NAME=FILE.yaml, or ``uncompressed``.

    Raises ConfigError for any other text.
    """
    if text == UNCOMPRESSED:
        return Contender(text)
    name, equals, source = text.partition("=")
    # Refuse a spec without a name: its first = belongs to a parameter.
    if not equals or not source or re.search(r"[|()]", name):
        raise ConfigError(
            f"--run: got {text!r}; expected NAME=SPEC, NAME=FILE.yaml or {UNCOMPRESSED!r}, such as "
            "'top-k 1%=residual|topk(ratio=0.01)'"
        )
    is_file = source.endswith((".yaml", ".yml"))
    contender = Contender(name, Path(source), None) if is_file else Contender(name, None, source)
    if not contender.slug:
        raise ConfigError(f"--run: the name {name!r} has no letter or digit; give one that has")
    return contender


def job_of(contender: Contender, seed: int, arguments: argparse.Namespace) -> tuple[Job, Any]:
    """The training job of one run, and its configuration as ``summary.json`` would have it.

    Raises ConfigError where the configuration is wrong.
    """
    configs = [path for path in (arguments.task, contender.config) if path is not None]
    # These runs are never resumed: an unfinished one starts again.
    settings = ["train.checkpoint_every=0", *arguments.set, f"train.seed={seed}"]
    if contender.spec is not None:
        settings.append(f"compress.default={contender.spec}")
    composed = compose(configs, settings)
    TrainSettings.from_mapping(composed.mapping, composed.origin)
    if "compress" in composed.mapping:
        Config.from_mapping(composed.mapping)
    job = Job(
        title=f"{contender.name}, seed {seed}",
        ranks=arguments.np,
        folder=_from_checkout(arguments.output) / contender.slug / f"seed-{seed}",
        arguments=(
            *(part for path in configs for part in ("--config", str(_from_checkout(path)))),
            *(part for setting in settings for part in ("--set", setting)),
        ),
    )
    return job, json.loads(json.dumps(composed.mapping, default=str))


def _from_checkout(path: Path) -> Path:
    return Path(os.path.relpath(path.absolute(), ROOT))


def check_same(job: Job, config: Any, summary: dict[str, Any]) -> None:
    """Raise ConfigError where a finished run is not the one that ``job`` would be."""
    if (summary["config"], summary["world_size"]) != (config, job.ranks):
        raise ConfigError(
            f"{job.folder} holds a run of another configuration or number of ranks; remove that "
            "folder, or give another --output"
        )


@dataclass(frozen=True)
class Row:
    """The figures of one contender, over its seeds."""

    name: str
    runs: int
    failed: int
    mean: float
    spread: float | None
    """Standard deviation over the seeds; None with a single seed."""
    best: float
    sent_bytes: float
    ratio: float
    last_sent_bytes: float
    """Bytes per step in the last epoch, after any warm-up."""
    last_ratio: float
    step_seconds: float


def row_of(contender: Contender, metric: Metric) -> Row:
    """Summarise the finished runs; there must be at least one."""
    summaries = contender.summaries
    final = [summary[f"final_{metric.key}"] for summary in summaries]
    best = [summary[f"best_{metric.key}"] for summary in summaries]
    last = [
        [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "epoch"][-1]
        for folder in contender.folders
    ]
    sent = statistics.fmean(summary["sent_bytes_per_step"] for summary in summaries)
    last_sent = statistics.fmean(row["sent_bytes_per_step"] for row in last)
    dense = 4 * summaries[0]["parameters"]
    return Row(
        name=contender.name,
        runs=len(summaries),
        failed=contender.failed,
        mean=statistics.fmean(final),
        spread=statistics.stdev(final) if len(final) > 1 else None,
        best=max(best) if metric.higher_is_better else min(best),
        sent_bytes=sent,
        ratio=dense / sent if sent else math.nan,
        last_sent_bytes=last_sent,
        last_ratio=dense / last_sent if last_sent else math.nan,
        step_seconds=statistics.median(summary["median_step_seconds"] for summary in summaries),
    )


HEADINGS = (
    "run",
    "seeds",
    "{metric}",
    "best",
    "bytes a step",
    "times fewer",
    "last epoch",
    "times fewer",
    "median step",
)


def cells_of(contender: Contender, metric: Metric) -> list[str]:
    """The row of a contender, in the order of HEADINGS."""
    if not contender.summaries:
        return [contender.name, f"0 of {contender.failed}", "failed", *[""] * (len(HEADINGS) - 3)]
    row = row_of(contender, metric)
    digits = metric.digits
    spread = "" if row.spread is None else f" ± {row.spread:.{digits}f}"
    return [
        row.name,
        f"{row.runs} of {row.runs + row.failed}" if row.failed else str(row.runs),
        f"{row.mean:.{digits}f}{spread}",
        f"{row.best:.{digits}f}",
        decimal(round(row.sent_bytes)),
        f"{row.ratio:.1f}x",
        decimal(round(row.last_sent_bytes)),
        f"{row.last_ratio:.1f}x",
        f"{1000 * row.step_seconds:.1f} ms",
    ]


def table_of(cells: Sequence[Sequence[str]], metric: Metric, title: str) -> Table:
    """The comparison, for a terminal."""
    table = Table(box=SIMPLE_HEAD, title=title, padding=(0, 0, 0, 1))
    for index, heading in enumerate(HEADINGS):
        name = heading.format(metric=metric.title).replace(" ", "\n", 1)
        table.add_column(name, justify="right" if index else "left", no_wrap=index > 0)
    for row in cells:
        table.add_row(*row)
    return table


def markdown_of(cells: Sequence[Sequence[str]], metric: Metric, title: str) -> str:
    """The comparison in Markdown, with notes on the columns."""
    headings = [heading.format(metric=metric.title) for heading in HEADINGS]
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)]]
    lines += [[cell.replace("|", r"\|") for cell in row] for row in cells]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{title}\n\n{table}\n\n{NOTES}\n"


NOTES = """\
- test result: at the end, mean ± standard deviation over the seeds; best: of any epoch and seed
- bytes a step: bytes of gradients that rank 0 hands to the collectives, with frame headers,
  indices and tokens; the mean over the whole run, and over its last epoch, after any warm-up
- times fewer: than the same gradients in float32
- median step: all ranks share one machine, so there is no slow network to save time on"""


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--task",
        required=True,
        type=Path,
        metavar="FILE",
        help="YAML file with the train section, such as configs/digits/cnn.yaml",
    )
    parser.add_argument(
        "--run",
        action="append",
        required=True,
        metavar="NAME=SPEC",
        help="a run to compare, the reference first; may be repeated. NAME=SPEC, or NAME=FILE.yaml "
        f"with a compress section, or {UNCOMPRESSED}",
    )
    parser.add_argument("--np", type=int, default=2, metavar="N", help="ranks (default: 2)")
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="train with seeds 0 to N-1 (default: 3)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one key of all runs, such as train.epochs=3; may be repeated",
    )
    parser.add_argument(
        "--loss",
        action="store_true",
        help="show the cross-entropy of the test, in bits, instead of the task's own metric",
    )
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="where runs and results go"
    )
    arguments = parser.parse_args()
    for name in ("np", "seeds"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name}: got {getattr(arguments, name)}; expected a number >= 1")
    return arguments


def train(contenders: Sequence[Contender], arguments: argparse.Namespace, console: Console) -> None:
    """Train all runs that are not finished yet.

    Raises ConfigError, before any starts, where a configuration is wrong, or where a finished run
    has another one.
    """
    todo = []
    for seed in range(arguments.seeds):
        for contender in contenders:
            job, config = job_of(contender, seed, arguments)
            summary = job.summary()
            if summary is None:
                todo.append((contender, job))
            else:
                check_same(job, config, summary)
                contender.add(job, summary)
    finished = len(contenders) * arguments.seeds - len(todo)
    console.print(f"==> {len(todo)} runs to train, {finished} are finished")
    with progress_on(console) as progress:
        for contender, job in todo:
            try:
                contender.add(job, run_job(job, progress))
            except JobFailedError as error:
                contender.failed += 1
                console.print(str(error), markup=False)


def main() -> int:
    """Run the comparison; returns the exit code."""
    arguments = parse()
    # Where the output is no terminal, rich would take it to be 80 columns wide.
    width = None if sys.stdout.isatty() else 110
    console = Console(highlight=False, soft_wrap=True, width=width)
    try:
        contenders = [contender_of(text) for text in arguments.run]
        slugs = [contender.slug for contender in contenders]
        for slug in slugs:
            if slugs.count(slug) > 1:
                raise ConfigError(f"--run: two names make the folder {slug!r}; change one of them")
        train(contenders, arguments, console)
    except GradcompError as error:
        print(f"compare.py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on with the runs that are left")
        return 130
    if any(contender.summaries for contender in contenders):
        report(contenders, arguments, console)
    return 1 if any(contender.failed for contender in contenders) else 0


def report(
    contenders: Sequence[Contender], arguments: argparse.Namespace, console: Console
) -> None:
    """Print the table; write it and the picture."""
    finished = [contender for contender in contenders if contender.summaries]
    first = finished[0].summaries[0]
    metric = CROSS_ENTROPY if arguments.loss else METRICS[first["metric"]]
    rows = [cells_of(contender, metric) for contender in contenders]
    title = f"{first['task']} on {arguments.np} ranks, {first['steps']} steps (Horovod, Gloo)"
    console.print(table_of(rows, metric, title))
    command = f"    {shlex.join(['scripts/compare.py', *sys.argv[1:]])}\n"
    text = f"{markdown_of(rows, metric, title)}\n{command}"
    (arguments.output / "comparison.md").write_text(text, encoding="utf-8")
    folders = {contender.name: contender.folders for contender in finished}
    plot_comparison(folders, metric, arguments.output / "comparison.png")
    console.print(f"Table, picture and runs: {arguments.output}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
