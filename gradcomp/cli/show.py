"""Output that commands share: tables, wrapped text, JSON and progress bars."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

__all__ = [
    "foldable",
    "output",
    "output_json",
    "progress",
    "ratio_text",
    "rule_and_spec",
    "table",
    "wrap",
]


def table(*columns: str, numbers: int = 0) -> Table:
    """A borderless table; its last ``numbers`` columns are right-aligned."""
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        number = index >= len(columns) - numbers
        justify: Any = "right" if number else "left"
        result.add_column(column, justify=justify, no_wrap=number, overflow="fold")
    return result


def foldable(spec: str) -> str:
    """A spec for a narrow column: one stage a line."""
    return spec.replace("|", "|\n")


def ratio_text(ratio: float) -> str:
    """A ratio of bytes, with more digits where compression costs more than it saves."""
    return f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"


def rule_and_spec(rule: str, spec: str) -> str:
    """A cell that names a rule, and its spec indented below."""
    return f"{rule}\n{textwrap.indent(foldable(spec), '  ')}"


def wrap(text: str) -> str:
    """Fill each line to the width of the terminal; continuation lines are indented by 4 more."""
    width = Console().width
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.splitlines()
    )


def output(*parts: str | Table) -> None:
    """Print text as it is, and tables within the terminal's width."""
    console = Console(markup=False, highlight=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def output_json(value: object) -> None:
    """Print one JSON value."""
    typer.echo(json.dumps(value, indent=2))


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error where that is a terminal; yields the function to advance it.

    Without a ``total`` the bar only shows activity.
    """
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)
