"""Figures; matplotlib is imported only when one is drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gradcomp.errors import GradcompError
from gradcomp.gossip import Topology

__all__ = ["new_figure", "plot_topology"]


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure; size in inches. It needs no display.

    Raises:
        GradcompError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise GradcompError("a plot needs matplotlib: pip install matplotlib") from error
    return Figure(figsize=(width, height), layout="constrained")


def plot_topology(topology: Topology, path: Path) -> None:
    """Draw the graphs of a topology's first rounds (at most eight) as one PNG.

    Raises:
        GradcompError: matplotlib is not installed.
    """
    rounds = min(topology.period, 8)
    columns = min(rounds, 4)
    rows = -(-rounds // columns)
    figure = new_figure(3.2 * columns, 3.2 * rows)
    angles = [2 * math.pi * rank / topology.world_size for rank in range(topology.world_size)]
    x, y = [math.sin(angle) for angle in angles], [math.cos(angle) for angle in angles]
    for step in range(rounds):
        axes = figure.add_subplot(rows, columns, step + 1)
        for rank in range(topology.world_size):
            for peer in topology.peers(rank, step).out:
                arrow = {"arrowstyle": "->", "color": "#999999", "shrinkA": 9, "shrinkB": 9}
                axes.annotate("", (x[peer], y[peer]), (x[rank], y[rank]), arrowprops=arrow)
            axes.text(x[rank], y[rank], str(rank), ha="center", va="center", fontsize=8)
        axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
        axes.set_title(topology.name if topology.period == 1 else f"{topology.name}, round {step}")
        axes.axis("off")
    figure.savefig(path, dpi=110, format="png")
