"""Figures; matplotlib is imported only when one is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from gradcomp.errors import GradcompError
from gradcomp.gossip import Topology

__all__ = ["label_of", "label_points", "new_figure", "plot_topology"]

_NEAR = 7.0
"""Pixels between points that share a label."""


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


def label_of(name: str) -> str:
    """A name that any program may have given, as a text for a figure.

    Dollar signs do not begin formulas; characters that cannot be shown are "?".
    """
    safe = name.encode("utf-8", "replace").decode()  # lone surrogates have no glyph
    plain = "".join(letter if letter.isprintable() else "?" for letter in safe)
    return plain.replace("$", r"\$")


def label_points(axes: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Name points so that no label lies on another one, a point or a line of the axes.

    Points at about the same place share a label. To be called last, when scales and limits are set.

    Args:
        points: x, y and the name of each.
    """
    figure = axes.figure
    figure.draw_without_rendering()  # the layout decides where points are
    groups: list[tuple[Any, list[str]]] = []  # place in pixels, names
    for x, y, name in points:
        place = axes.transData.transform((x, y))
        for other, names in groups:
            if math.dist(place, other) < _NEAR:
                names.append(name)
                break
        else:
            groups.append((place, [name]))
    marks = [place for place, _ in groups]
    for line in axes.lines:
        if line.get_linestyle() != "None":
            marks += list(axes.transData.transform(line.get_xydata()))
    taken = [_square(place) for place in marks]
    legend = axes.get_legend()
    if legend is not None:
        taken.append(legend.get_window_extent())
    room = axes.get_window_extent()
    for place, names in sorted(groups, key=lambda group: -len(group[1])):
        label = axes.annotate(
            ",\n".join(", ".join(names[at : at + 2]) for at in range(0, len(names), 2)),
            axes.transData.inverted().transform(place),
            xytext=(0, 0),
            textcoords="offset pixels",
            verticalalignment="bottom",  # the box's own, not that of letters without a descender
            fontsize=8,
            linespacing=1.1,
            arrowprops={"arrowstyle": "-", "color": "#888888", "linewidth": 0.6, "shrinkB": 3},
        )
        label.set_in_layout(False)
        taken.append(_place_label(label, place, taken, room))


def _place_label(label: Any, place: Any, taken: Sequence[Any], room: Any) -> Any:
    """Move a label to the nearest free position around its point; returns its box in pixels."""
    size = label.get_window_extent()
    width, height = size.width, size.height
    best: tuple[float, Any, tuple[float, float]] | None = None
    for distance, angle in product((8, 18, 32, 50, 75, 105, 140, 180), range(0, 360, 30)):
        dx, dy = (distance * f(math.radians(angle)) for f in (math.cos, math.sin))
        # The side of the label that faces the point is at this distance from it.
        left = dx if dx > 1 else dx - width if dx < -1 else -width / 2
        bottom = dy if dy > 1 else dy - height if dy < -1 else -height / 2
        box = size.from_bounds(place[0] + left, place[1] + bottom, width, height)
        outside = box.x0 < room.x0 or box.y0 < room.y0 or box.x1 > room.x1 or box.y1 > room.y1
        overlaps = sum(box.overlaps(other) for other in taken)
        cost = 1000 * overlaps + 500 * outside + distance
        if best is None or cost < best[0]:
            best = cost, box, (left, bottom)
    assert best is not None  # there are positions
    label.set_position(best[2])
    return best[1]


def _square(place: Any) -> Any:
    """The box of a point's marker."""
    from matplotlib.transforms import Bbox

    return Bbox.from_bounds(place[0] - 4, place[1] - 4, 8, 8)


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
