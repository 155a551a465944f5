"""The charts of a report, as SVG that follows the page's colours."""

from __future__ import annotations

import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gradcomp.tools.plotting import new_figure
from gradcomp.tools.run_folder import Row, RunFolder

__all__ = [
    "COLOURS",
    "errors_chart",
    "losses_chart",
    "tensor_errors_chart",
    "tests_chart",
    "times_chart",
]

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
    return _curves(
        [run for run in runs if run.steps],
        runs,
        lambda run: list(zip(run.steps, _smoothed(run.steps), strict=True)),
        "training loss",
    )


def tests_chart(runs: Sequence[RunFolder], key: str, title: str) -> str | None:
    """A result of tests by steps, bytes sent and time; None if no run has it.

    Args:
        key: "accuracy" or "test_bits".
    """

    def points(run: RunFolder) -> list[tuple[Row, float]]:
        by_step = {row["step"]: row for row in run.steps}
        return [
            (by_step[row["step"]], float(row[key]))
            for row in run.epochs
            if row.get(key) is not None and row["step"] in by_step
        ]

    return _curves([run for run in runs if points(run)], runs, points, title)


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
    axes.set_yticks(places, [run.label for run in profiled])
    axes.set_xlabel("ms of a mean step of rank 0, from its first gradient to its last average")
    figure.legend(loc="outside upper center", ncols=7, frameon=False)
    return _svg(figure, [axes], "times")


def errors_chart(runs: Sequence[RunFolder]) -> str | None:
    """The error of each step's average, where it was measured; None if nowhere."""
    measured = [run for run in runs if any(row.get("vnmse") is not None for row in run.profile)]
    if not measured:
        return None
    figure = new_figure(10, 3.2)
    axes = figure.subplots()
    found = []
    for run in measured:
        rows = _thinned([row for row in run.profile if row.get("vnmse") is not None])
        found += [row["vnmse"] for row in rows]
        axes.plot(
            [row["step"] for row in rows],
            [row["vnmse"] for row in rows],
            color=_colour(runs.index(run)),
        )
    axes.set(xlabel="step of the profile", ylabel="vNMSE of the average")
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
    axes.set_yticks(range(len(shown)), [names[at] for at in shown])
    axes.invert_yaxis()
    axes.set_xlabel("step of the profile")
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
    some: Sequence[RunFolder],
    runs: Sequence[RunFolder],
    points: Callable[[RunFolder], Sequence[tuple[Row, float]]],
    title: str,
) -> str | None:
    """A quantity of ``some`` of the runs over steps, bytes and time."""
    if not some:
        return None
    figure = new_figure(12, 3.4)
    panels = figure.subplots(1, 3, sharey=True)
    for run in some:
        elapsed = dict(
            zip(
                (row["step"] for row in run.steps),
                itertools.accumulate(row["seconds"] for row in run.steps),
                strict=True,
            )
        )
        found = _thinned(points(run))
        values = [value for _, value in found]
        colour = _colour(runs.index(run))
        for axes, places in zip(
            panels,
            (
                [row["step"] for row, _ in found],
                [row["sent_bytes_total"] / 1e6 for row, _ in found],
                [elapsed[row["step"]] for row, _ in found],
            ),
            strict=True,
        ):
            axes.plot(places, values, color=colour, linewidth=1.6)
    panels[0].set(xlabel="step", ylabel=title)
    panels[1].set(xlabel="MB of gradients sent by a rank, log scale", xscale="log")
    _plain_numbers(panels[1].xaxis)
    panels[2].set(xlabel="seconds in steps")
    return _svg(figure, panels, title)


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
    ]


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
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return text.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
