"""Plot runs of scripts/train.py next to each other: loss and bytes sent over the steps.

.venv/bin/python scripts/plots.py runs/a runs/b --output runs/comparison.png
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from rich.filesize import decimal

from training.metrics import read_rows

# Okabe and Ito's colours, told apart by colour-blind people and in print.
_COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
_SMOOTHING = 11


def plot_runs(runs: Mapping[str, Path], picture: Path) -> None:
    """Write one PNG of the runs, given as label and output folder."""
    mpl.rcParams["font.size"] = 10
    figure = Figure(figsize=(11, 4.4), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, (label, folder) in enumerate(runs.items()):
        rows = [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "step"]
        steps = np.array([row["step"] for row in rows])
        # The first is the reference: wider, so that what follows it closely does not hide it.
        width = 1.6 if index else 3.2
        style = {"label": label, "color": _COLOURS[index % len(_COLOURS)], "linewidth": width}
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
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    # After the scale, which brings a formatter of its own.
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: decimal(round(value))))
    left.legend(frameon=False)
    figure.savefig(picture)


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
