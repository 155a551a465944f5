"""The picture of a survey: rate against distortion, and speeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradcomp.tools.plotting import new_figure
from gradcomp.tools.survey import SurveyRow

__all__ = ["plot_survey"]


def _name(row: SurveyRow) -> str:
    """The spec without parameters, for which a picture has no space."""
    return re.sub(r"\([^)]*\)", "", row.spec)


def plot_survey(rows: Sequence[SurveyRow], path: Path) -> None:
    """Draw rate against distortion, and speeds as multiples of memcpy, as one PNG.

    Raises:
        GradcompError: matplotlib is not installed.
    """
    figure = new_figure(13, 0.32 * len(rows) + 3)
    scatter, bars = figure.subplots(1, 2)
    for is_baseline, marker, colour in ((False, "o", "tab:blue"), (True, "s", "tab:red")):
        lossy = [row for row in rows if row.baseline == is_baseline and row.vnmse["gauss"] > 0]
        if lossy:
            scatter.loglog(
                [row.bits_per_element for row in lossy],
                [row.vnmse["gauss"] for row in lossy],
                marker,
                color=colour,
                label="baselines" if is_baseline else "codecs",
            )
    for row in rows:
        if row.vnmse["gauss"] > 0:
            scatter.annotate(
                _name(row),
                (row.bits_per_element, row.vnmse["gauss"]),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=8,
            )
    rates = np.array([row.bits_per_element for row in rows])
    errors = [row.vnmse["gauss"] for row in rows if row.vnmse["gauss"] > 0]
    bound = np.geomspace(max(rates.min(), 0.01), rates.max(), 200)
    scatter.loglog(bound, 2.0 ** (-2 * bound), "k--", label="Gaussian bound, 2^(-2R)")
    if errors:
        scatter.set_ylim(bottom=min(errors) / 3, top=max(3, 3 * max(errors)))
    scatter.set(xlabel="bits per element", ylabel="vNMSE, Gaussian", title="Rate and distortion")
    scatter.legend(loc="lower left")
    places = np.arange(len(rows))[::-1]
    threads = rows[0].threads[0]
    for offset, operation, colour in ((0.2, "encode", "tab:orange"), (-0.2, "decode", "tab:green")):
        timings = [row.timing(operation, threads) for row in rows]
        values = [timing.speed_to_memcpy if timing else 0.0 for timing in timings]
        bars.barh(places + offset, values, 0.4, color=colour, label=operation)
    bars.axvline(1, color="black", linewidth=1)
    bars.set_yticks(places, [_name(row) for row in rows], fontsize=9)
    for label, row in zip(bars.get_yticklabels(), rows, strict=True):
        label.set_color("tab:red" if row.baseline else "black")
    bars.set(xscale="log", xlabel="speed, multiple of memcpy", title=f"Speed, {threads} thread(s)")
    bars.legend(loc="lower right")
    figure.savefig(path, dpi=110)
