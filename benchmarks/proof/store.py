"""The file of finished runs: a line of JSON for each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gradcomp.errors import ConfigError
from proof.cells import SPECS, TASKS, Cell

__all__ = ["Row", "append", "read", "seconds_left"]


class Row(NamedTuple):
    """A finished run.

    Attributes:
        cell: which one.
        loss: of the test data, in the task's unit; None if a training loss was not finite.
        accuracy: of the test data, in [0, 1]; None like ``loss``.
        ratio: times fewer bytes than those of float32 gradients.
        seconds: that the run took; they depend on what else the machine does.
    """

    cell: Cell
    loss: float | None
    accuracy: float | None
    ratio: float
    seconds: float


def _conditions(cell: Cell) -> dict[str, object]:
    """What decides the result beside the cell: a change makes finished runs void."""
    setup = TASKS[cell.task]
    return {"full": SPECS[cell.spec], "lr": setup.rates[cell.optimizer], "batch": setup.batch}


def append(path: Path, row: Row) -> None:
    """Add a run at the end of the file, which is made if there is none."""
    content = {**row.cell._asdict(), **_conditions(row.cell), **row._asdict()}
    del content["cell"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")


def read(path: Path) -> dict[Cell, Row]:
    """The finished runs of a file, without those of other specs, rates or batches.

    Raises:
        ConfigError: a line is not of this format.
    """
    rows = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
            cell = Cell(*(content[name] for name in Cell._fields))
            known = cell.task in TASKS and cell.spec in SPECS
            row = Row(cell, *(content[name] for name in Row._fields[1:]))
            if known and _conditions(cell).items() <= content.items():
                rows[cell] = row
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path}, line {number}: not a finished run ({error!r}); remove the line, and the "
                "run is made again"
            ) from None
    return rows


def seconds_left(cells: Iterable[Cell], rows: Iterable[Row]) -> tuple[float, int]:
    """An estimate for the runs of ``cells``, and how many of them have nothing to judge by.

    A run takes as long as the last one of its task and spec with as many ranks, else of its task,
    in proportion to rank-steps.
    """
    by_spec: dict[tuple[object, ...], float] = {}
    by_task: dict[str, float] = {}
    for row in rows:
        cell = row.cell
        pace = row.seconds / (cell.ranks * cell.steps)
        by_spec[cell.task, cell.spec, cell.ranks] = by_task[cell.task] = pace
    total, unknown = 0.0, 0
    for cell in cells:
        pace_or_none = by_spec.get((cell.task, cell.spec, cell.ranks), by_task.get(cell.task))
        if pace_or_none is None:
            unknown += 1
        else:
            total += pace_or_none * cell.ranks * cell.steps
    return total, unknown
