"""Bytes and time of a run until each of its steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp.tools.run_folder import RunFolder

__all__ = ["bytes_of_step", "last_step", "progress", "seconds_of_step", "times_fewer_bytes"]

Numbers = npt.NDArray[np.float64]


def progress(run: RunFolder, steps: Sequence[int]) -> tuple[Numbers, Numbers]:
    """Bytes that a rank has sent, and seconds in steps, until the end of each of ``steps``.

    A row stands for the steps since the row before: with ``train.log_every`` above 1 most steps have none.
    """
    places, sent, seconds = [0], [0.0], [0.0]
    for row in sorted([*run.steps, *run.epochs], key=lambda row: int(row["step"])):
        gap = row["step"] - places[-1]
        if gap <= 0:
            continue
        places.append(row["step"])
        seconds.append(seconds[-1] + gap * _first_of(row, "seconds", "median_step_seconds"))
        sent.append(
            float(row["sent_bytes_total"])
            if "sent_bytes_total" in row
            else sent[-1] + gap * _first_of(row, "sent_bytes_per_step")
        )
    return np.interp(steps, places, sent), np.interp(steps, places, seconds)


def last_step(run: RunFolder) -> int:
    """The number of the last step; of a profile alone, the number of its steps."""
    return max((row["step"] for row in [*run.steps, *run.epochs]), default=len(run.profile))


def bytes_of_step(run: RunFolder) -> float | None:
    """Bytes that a rank sends in a step, a mean; None if that is not known."""
    if run.steps or run.epochs:
        last = last_step(run)
        return float(progress(run, [last])[0][0]) / last if last else None
    return statistics.fmean(sum(row["sent_bytes"].values()) for row in run.profile)


def times_fewer_bytes(run: RunFolder) -> float | None:
    """Bytes of uncompressed float32 gradients over those that a rank sends; None if either is not known."""
    sent = bytes_of_step(run)
    if not sent:
        return None
    parameters = run.facts.get("parameters")
    if isinstance(parameters, int) and parameters > 0:
        return 4 * parameters / sent
    dense = [row["dense_bytes"] for row in run.profile if "dense_bytes" in row]
    return statistics.fmean(dense) / sent if dense and not (run.steps or run.epochs) else None


def seconds_of_step(run: RunFolder) -> float | None:
    """Duration of a step, a median; of a profile alone, of exchanges; None if that is not known."""
    found = [row["seconds"] for row in run.steps]
    found = found or [
        row["median_step_seconds"] for row in run.epochs if row.get("median_step_seconds")
    ]
    found = found or [row["seconds"] for row in run.profile]
    return statistics.median(found) if found else None


def _first_of(row: Any, *keys: str) -> float:
    return next((float(row[key]) for key in keys if row.get(key) is not None), 0.0)
