"""Plot runs of scripts/train.py side by side: loss and bytes sent over the steps.

.venv/bin/python scripts/results/plots.py runs/a runs/b --output runs/comparison.png
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from rich.filesize import decimal

# Run as a file, Python finds modules beside it only: the packages of scripts/ are one level up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from training.metrics import Metric, read_rows

# Okabe and Ito's colours: distinct for colour-blind readers and in print.
_COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
_DASHES = ("-", "--", ":")
_SMOOTHING = 11
_BYTES = FuncFormatter(lambda value, _: decimal(round(value)))


def plot_runs(runs: Mapping[str, Path], picture: Path) -> None:
    """Write one PNG of the runs, given as label and output folder."""
    mpl.rcParams["font.size"] = 10
    figure = Figure(figsize=(11, 4.4), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, (label, folder) in enumerate(runs.items()):
        style = _style(index, label)
        rows = [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "step"]
        steps = np.array([row["step"] for row in rows])
        left.plot(*_smoothed(steps, np.array([row["loss"] for row in rows])), **style)
        sent = [row["sent_bytes_total"] for row in rows]
        right.plot(steps, sent, **style)
        right.annotate(
            decimal(sent[-1]),
            (steps[-1], sent[-1]),
            xytext=(5, 0),
            textcoords="offset points",
            verticalalignment="center",
            color=style["color"],
        )
    left.set_title("Training loss", loc="left", fontweight="bold")
    left.set_ylabel(f"cross-entropy, mean over {_SMOOTHING} steps (nats)")
    right.set_title("Gradient bytes sent by one rank", loc="left", fontweight="bold")
    right.set_ylabel("bytes since the start (log scale)")
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_xlabel("optimizer step")
        axes.set_xlim(left=0)
        _tidy(axes)
    # After set_yscale, which sets a formatter of its own.
    right.yaxis.set_major_formatter(_BYTES)
    left.legend(frameon=False)
    figure.savefig(picture)


def plot_comparison(runs: Mapping[str, Sequence[Path]], metric: Metric, picture: Path) -> None:
    """Write one PNG: a metric by epoch, and the bytes of a step.

    ``runs``: for each label the output folders of its seeds. The lines are means, the bands one
    standard deviation to either side.
    """
    mpl.rcParams["font.size"] = 10
    figure = Figure(figsize=(12, 5), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    lowest = np.inf
    means: list[float] = []
    for index, (label, folders) in enumerate(runs.items()):
        style = _style(index, label)
        rows = [_epochs(folder) for folder in folders]
        tested = [row["epoch"] for row in rows[0] if row[metric.key] is not None]
        values = np.array(
            [[row[metric.key] for row in seed if row[metric.key] is not None] for seed in rows]
        )
        mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1 if len(rows) > 1 else 0)
        means += mean.tolist()
        left.plot(tested, mean, **style)
        left.fill_between(
            tested, mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0
        )
        whole = np.mean([row["sent_bytes_per_step"] for seed in rows for row in seed])
        last = np.mean([seed[-1]["sent_bytes_per_step"] for seed in rows])
        right.barh(index, whole, height=0.6, color=style["color"], alpha=0.35)
        right.barh(index, last, height=0.6, color=style["color"])
        texts = [decimal(round(value)) for value in (last, whole)]
        right.annotate(
            texts[0] if texts[0] == texts[1] else f"{texts[0]} (mean {texts[1]})",
            (max(last, whole), index),
            xytext=(4, 0),
            textcoords="offset points",
            verticalalignment="center",
        )
        lowest = min(lowest, last)
    left.set_title(metric.title.capitalize(), loc="left", fontweight="bold")
    left.set_xlabel("epoch")
    left.set_ylabel(f"{metric.title}: mean and standard deviation over seeds")
    left.xaxis.get_major_locator().set_params(integer=True)
    least, most, highest = np.quantile(means, (0, 0.95, 1))
    if highest > 10 * least > 0:  # a loss that falls by more than 10 times
        left.set_yscale("log")
        left.set_ylim(least / 1.5, highest * 1.5)  # bands may go down to 0
    elif highest - least > 1.5 * (most - least):  # a few points, far above all others
        left.set_ylim(least - 0.05 * (most - least), most + 0.1 * (most - least))
    left.legend(frameon=False, fontsize=9)
    right.set_title("Gradient bytes of a step, one rank", loc="left", fontweight="bold")
    right.set_xlabel("bytes (log scale): in the last epoch; pale: mean of the whole run")
    right.set_yticks(range(len(runs)), list(runs))
    right.invert_yaxis()
    right.set_xscale("log")
    high = right.get_xlim()[1]
    right.set_xlim(lowest / 3, high * 20)  # space for the numbers beside the bars
    right.xaxis.set_major_formatter(_BYTES)
    for axes in (left, right):
        _tidy(axes)
    figure.savefig(picture)


def _epochs(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "epoch"]


def _style(index: int, label: str) -> dict[str, Any]:
    """Style of the line of one run."""
    return {
        "label": label,
        "color": _COLOURS[index % len(_COLOURS)],
        "linestyle": _DASHES[index // len(_COLOURS) % len(_DASHES)],
        # The first is the reference: wider, so that what follows it closely does not hide it.
        "linewidth": 1.6 if index else 3.2,
    }


def _tidy(axes: Axes) -> None:
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _smoothed(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A moving average, placed in the middle of its window; short runs stay as they are."""
    if len(values) < 2 * _SMOOTHING:
        return steps, values
    cut = _SMOOTHING // 2
    return steps[cut:-cut], np.convolve(values, np.ones(_SMOOTHING) / _SMOOTHING, "valid")


def main() -> int:
    """Parse the command line and plot; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, help="output folders of scripts/train.py")
    parser.add_argument("--output", required=True, type=Path, metavar="PNG", help="the picture")
    arguments = parser.parse_args()
    for folder in arguments.runs:
        if not (folder / "metrics.jsonl").is_file():
            parser.error(f"{folder} has no metrics.jsonl: give an --output of scripts/train.py")
    plot_runs({folder.name: folder for folder in arguments.runs}, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
