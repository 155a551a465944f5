"""The charts of a report, as SVG that follows the page's colours."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gradcomp.tools.plotting import label_of, new_figure
from gradcomp.tools.run_folder import Row, RunFolder
from gradcomp.tools.run_names import names_of
from gradcomp.tools.run_progress import progress

__all__ = [
    "COLOURS",
    "errors_chart",
    "losses_chart",
    "tensor_errors_chart",
    "tests_chart",
    "times_chart",
]

Point = tuple[int, float]
"""A step and a value there."""

# Replaced by the page's own colours.
_INK, _GRID = "#010203", "#040506"

# After the page's ink, Okabe and Ito's colours without black and yellow: distinct for colour-blind
# readers, on light and on dark ground.
_OTHERS = ("#E69F00", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
COLOURS = ("currentColor", *_OTHERS)
"""Colours of runs, in turn."""

_PHASES = ("encode", "wait", "decode", "compensate", "copy", "error")

_POINTS = 400
"""Most points of a curve: more cannot be seen, and make the page large."""

_TENSORS, _COLUMNS = 24, 60
"""Most rows and columns of a chart of tensors, for the same reasons."""


def losses_chart(runs: Sequence[RunFolder]) -> str | None:
    """Training loss by steps, bytes sent and time; None if no run has it."""

    def points(run: RunFolder) -> list[Point]:
        steps = [row["step"] for row in run.steps]
        return _finite(zip(steps, _smoothed(run.steps), strict=True))

    return _curves(runs, points, "training loss")


def tests_chart(runs: Sequence[RunFolder], key: str, title: str) -> str | None:
    """A result of tests by steps, bytes sent and time; None if no run has it.

    Args:
        key: "accuracy" or "test_bits".
    """

    def points(run: RunFolder) -> list[Point]:
        return _finite((row["step"], row.get(key)) for row in run.epochs)

    return _curves(runs, points, title)


def times_chart(runs: Sequence[RunFolder]) -> str | None:
    """The phases of a mean step of each run with a profile; None if there is none."""
    profiled = [run for run in runs if run.profile]
    if not profiled:
        return None
    figure = new_figure(10, 1.2 + 0.5 * len(profiled))
    axes = figure.subplots()
    places = np.arange(len(profiled))[::-1]
    left = np.zeros(len(profiled))
    means = [_mean_times(run.profile) for run in profiled]
    for phase, colour in zip((*_PHASES, "other code"), (*_OTHERS, _GRID), strict=True):
        values = np.array([1e3 * times[phase] for times in means])
        if values.any():
            axes.barh(places, values, 0.6, left=left, color=colour, label=phase)
            left += values
    names = [name for run, name in zip(runs, names_of(runs), strict=True) if run.profile]
    axes.set_yticks(places, [label_of(name) for name in names])
    axes.set_xlabel("ms of a mean step of rank 0, from its first gradient to its last average")
    if left.any():
        figure.legend(loc="outside upper center", ncols=7, frameon=False)
    return _svg(figure, [axes], "times")


def errors_chart(runs: Sequence[RunFolder]) -> str | None:
    """The error of each step's average, where it was measured; None if nowhere."""
    errors = {
        index: _thinned(_finite((row["step"], row.get("vnmse")) for row in run.profile))
        for index, run in enumerate(runs)
    }
    found = [error for points in errors.values() for _, error in points]
    if not found:
        return None
    figure = new_figure(10, 3.2)
    axes = figure.subplots()
    for index, points in errors.items():
        if points:
            axes.plot(*zip(*points, strict=True), color=_colour(index))
    axes.set(xlabel="step of the profile", ylabel="vNMSE of the average")
    _whole_numbers(axes.xaxis)
    if max(found) > 10 * min(found) > 0:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    return _svg(figure, [axes], "errors")


def tensor_errors_chart(run: RunFolder) -> str | None:
    """The error of each tensor's average in each step of a run; None if no average has an error.

    Shown are the `_TENSORS` tensors with the largest errors, and means over neighbouring steps.
    """
    from matplotlib.colors import LogNorm, Normalize

    rows = [row for row in run.profile if row.get("errors")]
    names = list(dict.fromkeys(name for row in rows for name in row["errors"]))
    # None, of a tensor without an average in this step, is nan.
    found = np.array([[row["errors"].get(name) for row in rows] for name in names], np.float64)
    # Exact averages and averages that are not finite have no place on a scale of logarithms.
    errors = np.ma.masked_where(~(np.isfinite(found) & (found > 0)), found)
    if errors.count() == 0:
        return None
    columns = np.array_split(np.arange(len(rows)), min(len(rows), _COLUMNS))
    means = np.ma.stack([errors[:, column].mean(axis=1) for column in columns], axis=1)
    largest = np.argsort(-means.mean(axis=1).filled(0.0), kind="stable")[:_TENSORS]
    shown = np.sort(largest)  # in the order of the profile
    low, high = means.min(), means.max()
    wide = high > 10 * low
    figure = new_figure(10, 1.4 + 0.22 * len(shown))
    axes = figure.subplots()
    mesh = axes.pcolormesh(
        [*(rows[column[0]]["step"] for column in columns), rows[-1]["step"] + 1],
        np.arange(len(shown) + 1) - 0.5,
        means[shown],
        norm=LogNorm(low, high) if wide else Normalize(low, high),
        cmap="cividis",
        edgecolor="face",  # else the ground shows between cells
    )
    axes.set_yticks(range(len(shown)), [label_of(names[at]) for at in shown])
    axes.invert_yaxis()
    axes.set_xlabel("step of the profile")
    _whole_numbers(axes.xaxis)
    bar = figure.colorbar(mesh, ax=axes, label="vNMSE of the average")
    if wide:
        _plain_numbers(bar.ax.yaxis)
    bar.solids.set(rasterized=False, edgecolor="face")
    return _svg(figure, [axes, bar.ax], f"tensors of {run.label}")


def _mean_times(profile: Sequence[Row]) -> Counter[str]:
    """Mean seconds of a step by phase, and of the rest."""
    total: Counter[str] = Counter()
    for row in profile:
        total.update(row["phases"])
        total["other code"] += max(0.0, row["seconds"] - sum(row["phases"].values()))
    return Counter({phase: seconds / len(profile) for phase, seconds in total.items()})


def _curves(
    runs: Sequence[RunFolder], points: Callable[[RunFolder], list[Point]], title: str
) -> str | None:
    """A quantity of the runs that have it, over steps, bytes and time."""
    curves = {index: _thinned(found) for index, run in enumerate(runs) if (found := points(run))}
    if not curves:
        return None
    figure = new_figure(12, 3.4)
    panels = figure.subplots(1, 3, sharey=True)
    most_bytes = 0.0
    for index, found in curves.items():
        steps, values = zip(*found, strict=True)
        sent, seconds = progress(runs[index], steps)
        most_bytes = max(most_bytes, *sent)
        for axes, places in zip(panels, (steps, sent / 1e6, seconds), strict=True):
            axes.plot(places, values, color=_colour(index), linewidth=1.6)
    panels[0].set(xlabel="step", ylabel=title)
    _whole_numbers(panels[0].xaxis)
    if most_bytes > 0:
        panels[1].set(xlabel="MB of gradients sent by a rank, log scale", xscale="log")
        _plain_numbers(panels[1].xaxis)
    else:  # one rank alone
        panels[1].set(xlabel="MB of gradients sent by a rank")
    panels[2].set(xlabel="seconds in steps")
    return _svg(figure, panels, title)


def _finite(points: Iterable[tuple[int, float | None]]) -> list[Point]:
    return [(step, value) for step, value in points if value is not None and math.isfinite(value)]


def _whole_numbers(axis: Any) -> None:
    """Whole numbers alone, as there is no half of a step."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))


def _plain_numbers(axis: Any) -> None:
    """Numbers without powers of ten on a log scale, and few enough for their space."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 3), numticks=6))
    axis.set_major_formatter("{x:.3g}")
    axis.set_minor_formatter(NullFormatter())


def _smoothed(rows: Sequence[Row], width: int = 11) -> list[float]:
    """The loss of each step, as a mean over the steps around it."""
    losses = np.array([row["loss"] for row in rows], np.float64)
    reach = width // 2
    return [
        float(np.mean(losses[max(0, at - reach) : at + reach + 1])) for at in range(losses.size)
    ]  # not finite next to a loss that is not


def _thinned(points: Sequence[Any]) -> list[Any]:
    """At most `_POINTS` of the points, the last one included."""
    stride = max(1, -(-len(points) // _POINTS))
    return [*points[:-1:stride], *points[-1:]]


def _colour(index: int) -> str:
    colour = COLOURS[index % len(COLOURS)]
    return _INK if colour == "currentColor" else colour


def _svg(figure: Any, panels: Iterable[Any], name: str) -> str:
    """The figure as an SVG element, in which ink and grid are the page's.

    Args:
        name: of the figure; keeps the identifiers of several figures in one page apart.
    """
    import matplotlib as mpl

    for axes in panels:
        axes.grid(True, color=_GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_facecolor("none")
        axes.spines[["top", "right"]].set_visible(False)
        for spine in axes.spines.values():
            spine.set_color(_INK)
        axes.tick_params(colors=_INK, which="both")
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set_color(_INK)
    for legend in figure.legends:
        for text in legend.get_texts():
            text.set_color(_INK)
    figure.patch.set_visible(False)
    file = io.StringIO()
    # The reader's fonts have glyphs that matplotlib's may lack.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return text.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
