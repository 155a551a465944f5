"""Plot runs of scripts/train.py side by side: loss and bytes sent over the steps.

.venv/bin/python scripts/results/plots.py runs/a runs/b --output runs/comparison.png
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from rich.filesize import decimal

# Run as a file, Python finds modules next to it only: the packages of scripts/ are one level up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gradcomp.tools.plotting import label_of
from training.metrics import ACCURACY, Metric, read_rows

# Okabe and Ito's colours: distinct for colour-blind readers and in print.
_COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
_DASHES = ("-", "--", ":")
_APART = "#0072B2"
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

    Accuracies are drawn as errors on a log scale, which shows differences near 100 %. Up to eight
    runs share a panel; more get one each, next to the first run, the reference.

    ``runs``: for each label the output folders of its seeds. The lines are means, the bands one
    standard deviation to either side.
    """
    mpl.rcParams["font.size"] = 10
    curves = [_curve(label, folders, metric) for label, folders in runs.items()]
    apart = len(curves) > len(_COLOURS)
    figure = Figure(figsize=(14, 6) if apart else (13, 5), dpi=130, layout="constrained")
    left, right = np.asarray(figure.subfigures(1, 2, width_ratios=(8, 5))).tolist()
    if apart:
        _draw_apart(left, curves, metric)
    else:
        _draw_together(left, curves, metric)
    colours = [_APART if index and apart else _colour(index) for index in range(len(curves))]
    _draw_bytes(right.subplots(), curves, colours)
    figure.savefig(picture)


@dataclass(frozen=True)
class _Curve:
    """The seeds of one run: a metric by epoch, as drawn, and bytes of a step."""

    label: str
    epochs: list[int]
    mean: np.ndarray
    spread: np.ndarray
    sent: float
    last_sent: float


def _curve(label: str, folders: Sequence[Path], metric: Metric) -> _Curve:
    rows = [_epochs(folder) for folder in folders]
    values = np.array(
        [[row[metric.key] for row in seed if row[metric.key] is not None] for seed in rows]
    )
    if metric.key == ACCURACY.key:
        values = 100 * (1 - values)
    return _Curve(
        label_of(label),
        [row["epoch"] for row in rows[0] if row[metric.key] is not None],
        values.mean(axis=0),
        values.std(axis=0, ddof=1 if len(rows) > 1 else 0),
        float(np.mean([row["sent_bytes_per_step"] for seed in rows for row in seed])),
        float(np.mean([seed[-1]["sent_bytes_per_step"] for seed in rows])),
    )


def _draw_curve(axes: Axes, curve: _Curve, **style: Any) -> None:
    axes.plot(curve.epochs, curve.mean, label=curve.label, **style)
    low, high = curve.mean - curve.spread, curve.mean + curve.spread
    axes.fill_between(curve.epochs, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _draw_together(figure: SubFigure, curves: Sequence[_Curve], metric: Metric) -> None:
    """All curves in one panel, with the legend below it."""
    axes = figure.subplots()
    for index, curve in enumerate(curves):
        # The reference is wider, so that what follows it closely does not hide it.
        _draw_curve(axes, curve, color=_colour(index), linewidth=1.6 if index else 3.2)
    _scale(axes, curves, metric)
    axes.set_xlabel("epoch")
    axes.set_title(_title(metric), loc="left", fontweight="bold")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def _draw_apart(figure: SubFigure, curves: Sequence[_Curve], metric: Metric) -> None:
    """A panel for each run, with the reference in grey."""
    reference, *others = curves
    columns = 4
    rows = -(-len(others) // columns)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, curve in zip(grid.flat, others, strict=False):
        _draw_curve(axes, reference, color="#888888", linewidth=2.4)
        _draw_curve(axes, curve, color=_APART, linewidth=1.6)
        axes.set_title(curve.label, loc="left", fontsize=10)
        _scale(axes, curves, metric)
    for axes in grid.flat[len(others) :]:
        axes.set_visible(False)
    figure.suptitle(f"{_title(metric)}; grey: {reference.label}", x=0.02, ha="left", weight="bold")
    figure.supxlabel("epoch", fontsize=10)


def _title(metric: Metric) -> str:
    """The quantity of a panel, with its unit."""
    if metric.key == ACCURACY.key:
        return "Wrong predictions in the test, % (log scale)"
    return f"{metric.title.capitalize()} in the test"


def _scale(axes: Axes, curves: Sequence[_Curve], metric: Metric) -> None:
    """Scale and limits that show all curves, and differences between the best."""
    means = np.concatenate([curve.mean for curve in curves])
    least, most, highest = np.quantile(means, (0, 0.95, 1))
    if least > 0 and (metric.key == ACCURACY.key or highest > 10 * least):
        axes.set_yscale("log")
        axes.set_ylim(least / 1.5, highest * 1.2)  # bands may go down to 0
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif highest - least > 1.5 * (most - least):  # a few points, far above all others
        axes.set_ylim(least - 0.05 * (most - least), most + 0.1 * (most - least))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _tidy(axes)


def _draw_bytes(axes: Axes, curves: Sequence[_Curve], colours: Sequence[str]) -> None:
    for index, (curve, colour) in enumerate(zip(curves, colours, strict=True)):
        axes.barh(index, curve.sent, height=0.6, color=colour, alpha=0.35)
        axes.barh(index, curve.last_sent, height=0.6, color=colour)
        texts = [decimal(round(value)) for value in (curve.last_sent, curve.sent)]
        axes.annotate(
            texts[0] if texts[0] == texts[1] else f"{texts[0]} (mean {texts[1]})",
            (max(curve.last_sent, curve.sent), index),
            xytext=(4, 0),
            textcoords="offset points",
            verticalalignment="center",
        )
    axes.set_title("A rank's bytes of a step", loc="left", fontweight="bold")
    axes.set_xlabel("bytes (log scale) in the last epoch;\npale: mean of the whole run")
    axes.set_yticks(range(len(curves)), [curve.label for curve in curves])
    axes.invert_yaxis()
    axes.set_xscale("log")
    low = min(curve.last_sent for curve in curves) / 3
    high = max(curve.sent for curve in curves)
    # The longest bar takes two fifths of the scale: the rest is for the numbers next to it.
    axes.set_xlim(low, low * (high / low) ** 2.5)
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(_BYTES)
    _tidy(axes)


def _epochs(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "epoch"]


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _style(index: int, label: str) -> dict[str, Any]:
    """Style of the line of one run."""
    return {
        "label": label_of(label),
        "color": _colour(index),
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
