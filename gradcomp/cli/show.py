"""Output that commands share: tables, wrapped text, JSON and progress bars."""

from __future__ import annotations

import itertools
import json
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.segment import Segment, Segments
from rich.table import Table

__all__ = [
    "output",
    "output_json",
    "progress",
    "ratio_text",
    "table",
    "wrap",
]


_EVERY = 5.0
"""Seconds between lines of progress."""


def table(*columns: str, numbers: int = 0) -> Table:
    """A borderless table; its last ``numbers`` columns are right-aligned."""
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        number = index >= len(columns) - numbers
        justify: Any = "right" if number else "left"
        result.add_column(column, justify=justify, no_wrap=number, overflow="fold")
    return result


def ratio_text(ratio: float) -> str:
    """A ratio of bytes, with more digits where compression costs more than it saves."""
    return f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"


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
    """Print text as it is, and tables within the terminal's width, without blanks at the ends of lines."""
    console = Console(markup=False, highlight=False)
    for part in parts:
        if isinstance(part, str):
            console.print(part, soft_wrap=True)
            continue
        for line in console.render_lines(part, pad=False):
            console.print(Segments([*_without_blanks(line), Segment.line()]), end="")


def _without_blanks(line: list[Segment]) -> list[Segment]:
    """A line without the blanks at its end."""
    while line and not line[-1].text.rstrip():
        line = line[:-1]
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else []


def output_json(value: object) -> None:
    """Print one JSON value."""
    typer.echo(json.dumps(value, indent=2))


@contextmanager
def progress(label: str, total: int | None, *, lines: bool = False) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error; yields the function to advance it.

    Without a ``total`` the bar only shows activity. Where standard error is not a terminal, there is no bar.

    Args:
        lines: print a line every `_EVERY` seconds there, which says how far it is of ``total``.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(label, total) if lines and total is not None else lambda: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


def _lines(label: str, total: int) -> Callable[[], None]:
    """A function that counts its calls on standard error, in a line every `_EVERY` seconds."""
    done = itertools.count(1)
    last = time.monotonic()

    def advance() -> None:
        nonlocal last
        count, now = next(done), time.monotonic()
        if now - last >= _EVERY and count != total:
            last = now
            typer.echo(f"{label}: {count} of {total}", err=True)

    return advance
