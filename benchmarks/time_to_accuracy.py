"""Training on a slow network: the time to reach the uncompressed run's result.

  python benchmarks/time_to_accuracy.py --task configs/digits/cnn.yaml --np 4 --rate 100mbit \\
      --run uncompressed --run fp16=fp16 --run 'top-k 1%=residual|topk(ratio=0.01)' \\
      --output runs/time-to-accuracy

Each rank of scripts/train.py is on a host of its own, a network namespace of this machine behind a
link of the given rate (benchmarks/netlab, which needs root), under stock Horovod. Only steps
count as time; tests do not. The target is the worst final result of the first run's seeds. A run
reaches it in the first epoch with an equally good test. Finished runs in OUTPUT are kept.

With --measure-steps N runs train without the links, and each contender takes N steps behind them;
their median is the time of a step. With outer steps it is the mean over the second round. Learning
does not depend on the link, so this saves the hours of uncompressed runs. It requires contenders with
uniform steps (no warm-up, no dense steps).

Exit codes: 0 done, 1 a run failed, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from compare import Contender, check_same, contender_of, job_of
from gradcomp.errors import ConfigError
from netlab import JobError, Lab, LabError, run
from results.jobs import ROOT, Job
from training.metrics import METRICS, Metric, read_rows
from training.settings.outer import OuterSettings

_TIMEOUT = 3600.0

Curve = list[tuple[float, float]]
"""Seconds since the beginning, and what a test then found."""


def parse() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, type=Path, metavar="FILE", help="YAML file")
    parser.add_argument(
        "--run",
        action="append",
        required=True,
        metavar="NAME=SPEC",
        help="what to compare, the reference first; as in scripts/compare.py",
    )
    parser.add_argument("--np", type=int, default=4, metavar="N", help="ranks (default: 4)")
    parser.add_argument("--rate", default="100mbit", help="of each link (default: 100mbit)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--measure-steps", type=int, metavar="N", help="take the time of N steps, not of whole runs"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    for name, least in (("np", 2), ("seeds", 1)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name}: got {getattr(arguments, name)}; expected at least {least}")
    if arguments.measure_steps is not None and arguments.measure_steps < 3:
        parser.error(f"--measure-steps: got {arguments.measure_steps}; expected at least 3")
    return arguments


def train(
    lab: Lab, contender: Contender, seed: int, arguments: argparse.Namespace
) -> tuple[Job, dict[str, Any]]:
    """One run of a contender, unless it is finished; the job and its summary."""
    job, config = job_of(contender, seed, arguments)
    finished = job.summary()
    if finished is not None:
        check_same(job, config, finished)
    else:
        print(f"    {job.title} ...", flush=True)
        folder = ROOT / job.folder
        shutil.rmtree(folder, ignore_errors=True)  # from an unfinished run
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), *job.arguments]
        command += ["--output", str(folder)]
        run(lab, "horovod", arguments.np, command, folder.parent / f"{folder.name}-logs", _TIMEOUT)
    summary = job.summary()
    assert summary is not None  # since the run has succeeded
    return job, summary


def step_seconds(lab: Lab, contender: Contender, arguments: argparse.Namespace) -> float:
    """The median time of some steps of a contender; with outer steps the mean of a round."""
    few = argparse.Namespace(**vars(arguments))
    few.output = arguments.output / "steps"
    _, config = job_of(contender, 0, arguments)
    every = OuterSettings(**config["outer"]).every if "outer" in config else 0
    steps = 2 * every or arguments.measure_steps
    few.set = [*arguments.set, "train.epochs=1", f"train.steps_per_epoch={steps}"]
    job, summary = train(lab, contender, 0, few)
    if not every:
        return float(summary["median_step_seconds"])
    rows = read_rows(ROOT / job.folder / "metrics.jsonl")
    return statistics.fmean([row["seconds"] for row in rows if row["kind"] == "step"][every:])


def curve_of(
    rows: Sequence[dict[str, Any]], metric: Metric, step_seconds: float | None = None
) -> Curve:
    """From the rows of a run's metrics; with a given time of every step, if any."""
    steps = [row for row in rows if row["kind"] == "step"]
    seconds = (row["seconds"] if step_seconds is None else step_seconds for row in steps)
    ends = dict(zip((row["step"] for row in steps), accumulate(seconds), strict=True))
    return [
        (ends[row["step"]], row[metric.key])
        for row in rows
        if row["kind"] == "epoch" and row[metric.key] is not None
    ]


def seconds_to(target: float, curve: Curve, metric: Metric) -> float | None:
    """The time of the first test that reaches the target; None: never."""
    sign = 1 if metric.higher_is_better else -1
    return next((at for at, value in curve if sign * value >= sign * target), None)


def table_of(rows: Sequence[dict[str, Any]], metric: Metric) -> str:
    """Markdown."""
    base = rows[0]["seconds"]
    lines = [
        f"| | {metric.title} | bytes a step | seeds there | s, median | speed-up |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        final = row["final"]
        spread = f" ± {statistics.stdev(final):.{metric.digits}f}" if len(final) > 1 else ""
        there = [seconds for seconds in row["seconds"] if seconds is not None]
        cells = [
            f"{statistics.fmean(final):.{metric.digits}f}{spread}",
            f"{row['sent_bytes_per_step']:.0f}",
            f"{len(there)} of {len(final)}",
        ]
        # A median would be too good if some seeds never reach the target.
        if len(there) == len(final):
            median = statistics.median(there)
            cells += [f"{median:.1f}", f"{statistics.median(base) / median:.1f}x"]
        else:
            cells += ["", ""]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(curves: dict[str, list[Curve]], metric: Metric, target: float, path: Path) -> None:
    """Results against time, a line for each seed."""
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    for number, (name, of_seeds) in enumerate(curves.items()):
        for seed, curve in enumerate(of_seeds):
            at, values = zip(*curve, strict=True)
            label = None if seed else name
            axes.plot(at, values, color=f"C{number}", marker=".", alpha=0.8, label=label)
    axes.axhline(target, color="black", linestyle=":", label="target")
    axes.set(xscale="log", xlabel="seconds of steps", ylabel=metric.title)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> int:
    """Train and compare; returns the exit code."""
    arguments = parse()
    try:
        contenders = [contender_of(text) for text in arguments.run]
        with Lab(arguments.np, arguments.rate) as lab:
            measured = lab.measure() / 1e6
            print(f"{arguments.np} ranks, links of {measured:.1f} Mbit/s", flush=True)
            of_step: dict[str, float] = {}
            if arguments.measure_steps is not None:
                for contender in contenders:
                    of_step[contender.name] = step_seconds(lab, contender, arguments)
                    print(f"        {1e3 * of_step[contender.name]:.1f} ms a step", flush=True)
                lab.shape(None)
            for seed in range(arguments.seeds):
                for contender in contenders:
                    contender.add(*train(lab, contender, seed, arguments))
    except (ConfigError, LabError) as error:
        print(f"time_to_accuracy: {error}", file=sys.stderr)
        return 2
    except JobError as error:
        print(f"time_to_accuracy: {error}", file=sys.stderr)
        return 1
    metric = METRICS[contenders[0].summaries[0]["metric"]]
    final = {
        contender.name: [summary[f"final_{metric.key}"] for summary in contender.summaries]
        for contender in contenders
    }
    worst = min if metric.higher_is_better else max
    target = worst(final[contenders[0].name])
    curves = {
        contender.name: [
            curve_of(read_rows(folder / "metrics.jsonl"), metric, of_step.get(contender.name))
            for folder in contender.folders
        ]
        for contender in contenders
    }
    rows = [
        {
            "name": contender.name,
            "final": final[contender.name],
            "seconds": [seconds_to(target, curve, metric) for curve in curves[contender.name]],
            "step_seconds": of_step.get(contender.name),
            "sent_bytes_per_step": statistics.fmean(
                summary["sent_bytes_per_step"] for summary in contender.summaries
            ),
        }
        for contender in contenders
    ]
    text = (
        f"{arguments.task.stem}, {arguments.np} ranks, links of {measured:.1f} Mbit/s, target "
        f"{target:.{metric.digits}f}\n\n{table_of(rows, metric)}"
    )
    print(f"\n{text}")
    name = f"{arguments.task.stem}-{arguments.np}-{arguments.rate}"
    (arguments.output / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    (arguments.output / f"{name}.md").write_text(f"{text}\n", "utf-8")
    draw(curves, metric, target, arguments.output / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
