"""The picture of a survey: rate against distortion, and speeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradcomp.tools.plotting import label_points, new_figure
from gradcomp.tools.survey import SurveyRow

__all__ = ["plot_survey"]

# Okabe and Ito's colours: distinct for colour-blind readers.
_KINDS = ((False, "codecs", "o", "#0072B2"), (True, "baselines", "s", "#D55E00"))
_OPERATIONS = (("encode", ">", "#009E73"), ("decode", "<", "#CC79A7"))

_DPI = 110


def _name(row: SurveyRow) -> str:
    """The spec without parameters, for which a picture has no space."""
    return re.sub(r"\([^)]*\)", "", row.spec)


def plot_survey(rows: Sequence[SurveyRow], path: Path) -> None:
    """Draw rate against distortion, and speeds as multiples of memcpy, as one PNG.

    Raises:
        GradcompError: matplotlib is not installed.
    """
    figure = new_figure(15, 0.22 * len(rows) + 3)
    figure.set_dpi(_DPI)  # labels are placed in pixels
    left, right = figure.subplots(1, 2, width_ratios=(5, 3))
    for axes in (left, right):
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    _draw_speeds(rows, right)
    _draw_errors(rows, left)
    figure.savefig(path, dpi=_DPI)


def _draw_errors(rows: Sequence[SurveyRow], axes: Any) -> None:
    lossy = [row for row in rows if row.vnmse["gauss"] > 0]
    for baseline, label, marker, colour in _KINDS:
        some = [row for row in lossy if row.baseline == baseline]
        axes.loglog(
            [row.bits_per_element for row in some],
            [row.vnmse["gauss"] for row in some],
            marker,
            color=colour,
            label=label,
        )
    rates = np.array([row.bits_per_element for row in rows])
    errors = [row.vnmse["gauss"] for row in lossy]
    bound = np.geomspace(max(rates.min(), 0.01), rates.max(), 200)
    axes.loglog(bound, 2.0 ** (-2 * bound), "k--", label="least of any code: $2^{-2R}$")
    if errors:
        axes.set_ylim(bottom=min(errors) / 3, top=max(3, 3 * max(errors)))
    axes.set(
        xlabel="bits per element, R",
        ylabel="squared error / squared norm (vNMSE), Gaussian input",
        title="Rate and distortion",
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(loc="lower left", frameon=False)
    label_points(
        axes,
        [(row.bits_per_element, row.vnmse["gauss"], _name(row)) for row in lossy],
    )


def _draw_speeds(rows: Sequence[SurveyRow], axes: Any) -> None:
    places = np.arange(len(rows))[::-1]
    threads = rows[0].threads[0]
    for operation, marker, colour in _OPERATIONS:
        timings = [row.timing(operation, threads) for row in rows]
        speeds = [timing.speed_to_memcpy if timing else np.nan for timing in timings]
        axes.plot(speeds, places, marker, color=colour, markersize=7, label=operation)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(places, [_name(row) for row in rows], fontsize=9)
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_color(_KINDS[row.baseline][3] if row.baseline else "black")
    axes.set_ylim(-1, len(rows))
    axes.set(
        xscale="log",
        xlabel="elements per second, multiple of a memory copy",
        title=f"Speed, {threads} thread(s)",
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(loc="upper right", frameon=True)
