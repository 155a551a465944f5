"""Results of trials as a table and as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from chaos.trial import Result

__all__ = ["HEADINGS", "markdown", "rows", "table", "write"]

HEADINGS = (
    *("fault", "engine", "trials", "ended", "recovered", "hung or silent"),
    *("longest, s", "cause named", "orphans", "files left"),
)


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """A row for each fault and engine, in the order of HEADINGS."""
    cells = sorted({(result.plan.fault, result.plan.engine) for result in results})
    found: list[tuple[str, ...]] = []
    for fault, engine in cells:
        of_cell = [
            result
            for result in results
            if (result.plan.fault, result.plan.engine) == (fault, engine)
        ]
        ends = [result.end for result in of_cell]
        found.append(
            (
                *(fault, engine, str(len(of_cell)), str(ends.count("ended"))),
                str(ends.count("recovered")),
                str(ends.count("hung") + ends.count("silent")),
                f"{max(result.seconds for result in of_cell):.1f}",
                f"{sum(result.named for result in of_cell)} of {len(of_cell)}",
                str(sum(len(result.orphans) for result in of_cell)),
                str(sum(len(result.files) for result in of_cell)),
            )
        )
    return found


def table(results: Sequence[Result]) -> Table:
    """The table for a terminal."""
    drawn = Table(*HEADINGS)
    for row in rows(results):
        drawn.add_row(*row)
    return drawn


def markdown(results: Sequence[Result], command: str) -> str:
    """The table in Markdown, with the command that made it."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|" + "---:|" * (len(HEADINGS) - 2)]
    lines += [f"| {' | '.join(row)} |" for row in rows(results)]
    return "\n".join(["```", f"$ {command}", "```", "", *lines])


def write(results: Sequence[Result], command: str, folder: Path) -> None:
    """Write results.json and results.md; outputs of good trials are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    trials = [result.as_dict() for result in results]
    for trial in trials:
        if trial["good"]:
            del trial["output"]
    data = {"command": command, "trials": trials}
    (folder / "results.json").write_text(f"{json.dumps(data, indent=1)}\n", encoding="utf-8")
    text = markdown(results, command)
    (folder / "results.md").write_text(f"{text}\n", encoding="utf-8")
