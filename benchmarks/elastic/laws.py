"""Laws of elastic jobs, checked on the rows that their workers log; for tests, too.

A value of a row is a number or a list of numbers: sums of all elements with some signs.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic.job import Row

TOLERANCE = 3e-5
"""Of both sides of a law, relative to the largest value in them."""

Life = dict[int, dict[int, Row]]
"""The rows of a life, by step and rank."""


def lives_of(rows: list[Row]) -> list[Life]:
    """The rows of each life, by step and rank, in the order of lives."""
    lives: dict[float, Life] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        lives[row["life"]][row["step"]][row["rank"]] = row
    return [lives[life] for life in sorted(lives)]


def complete(life: Life) -> dict[int, list[Row]]:
    """The steps that all ranks of a life have made."""
    return {
        step: [of_ranks[rank] for rank in sorted(of_ranks)]
        for step, of_ranks in sorted(life.items())
        if len(of_ranks) == of_ranks[min(of_ranks)]["size"]
    }


def sizes_of(lives: list[Life]) -> list[int]:
    """The number of ranks of each life with a complete step."""
    return [next(iter(steps.values()))[0]["size"] for life in lives if (steps := complete(life))]


def check_replicas(lives: list[Life]) -> None:
    """Equal parameters on all ranks after each step, and before the first one of each life if logged."""
    for life in lives:
        for step, rows in complete(life).items():
            assert len({row["digest"] for row in rows}) == 1, f"replicas differ after step {step}"
            starts = {row.get("start_digest") for row in rows}
            assert len(starts) == 1, f"replicas differ before step {step}"


def check_steps(lives: list[Life]) -> float:
    """Applied and unsent changes are all changes; returns the largest relative difference.

    The first rank's ``common`` changes, if logged, are those of all ranks.
    """
    worst = 0.0
    for life in lives:
        for step, rows in complete(life).items():
            owed = [_of(row, "given") + _of(row, "before") - _of(row, "after") for row in rows]
            values = [_of(row, name) for row in rows for name in ("given", "before", "applied")]
            what = f"step {step} loses changes"
            all_changes = np.mean(owed, 0) + rows[0].get("common", 0.0)
            worst = max(worst, _equal(_of(rows[0], "applied"), all_changes, values, what))
    return worst


def check_resets(lives: list[Life]) -> int:
    """Survivors' residuals count as before; returns the number of resets.

    Survivors' parameters, and momenta if they are logged, are those of the step that a life begins at.
    """
    checked = 0
    for number, new in enumerate(lives[1:], 1):
        steps = complete(new)
        if not steps:
            continue
        first = steps[min(steps)]
        stayed = {row["pid"] for row in first}
        begin = first[0]["step"] - 1
        survivors = _survivors(lives[:number], begin, stayed)
        if not survivors:
            continue
        kept = [_of(row, "after") / row["size"] for row in survivors]
        now = [_of(row, "before") / row["size"] for row in first]
        _equal(np.sum(now, 0), np.sum(kept, 0), [*kept, *now], f"a reset at step {begin} loses")
        row_of = {row["pid"]: row for row in first}
        for row in survivors:
            again = row_of[row["pid"]]
            if "start_digest" in again:
                assert again["start_digest"] == row["digest"], f"other parameters at step {begin}"
            if "momentum" in again:
                both = [_of(row, "momentum_after"), _of(again, "momentum")]
                _equal(*both, both, f"another momentum at step {begin}")
        checked += 1
    return checked


def _survivors(lives: list[Life], step: int, stayed: Iterable[int]) -> list[Row]:
    """Rows of a step, in the last life that made it, of processes that stayed."""
    for life in reversed(lives):
        # After a failure this is the last step that was committed, perhaps by survivors only.
        if rows := [row for row in life.get(step, {}).values() if row["pid"] in stayed]:
            return rows
    return []


def _of(row: Row, name: str) -> npt.NDArray[np.float64]:
    return np.atleast_1d(np.asarray(row[name], np.float64))


def _equal(first: Any, second: Any, values: Iterable[Any], what: str) -> float:
    """The largest difference, relative to values; no more than the tolerance."""
    scale = max(itertools.chain([1e-9], (float(np.abs(value).max()) for value in values)))
    difference = float(np.abs(first - second).max()) / scale
    assert difference <= TOLERANCE, f"{what}: {first} != {second}"
    return difference
