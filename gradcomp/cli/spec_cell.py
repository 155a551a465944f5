"""Specs in the cells of tables: folded between stages and parameters, never within a name or a number."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

__all__ = ["SpecCell"]

_STAGE = re.compile(r"[^|]+\|?")
_PIECE = re.compile(r"[^,(]*[,(]?")
_INDENT = "  "


class SpecCell:
    """A spec, or several, one a line.

    A spec that is wider than its column has a stage on each line; a stage that is wider goes on, indented, after
    a comma or the opening parenthesis.

    Args:
        text: lines with a spec each, which may have words before them.
        title: a line above, which is folded between words.
    """

    def __init__(self, text: str, title: str | None = None) -> None:
        self._lines = text.splitlines()
        self._title = title
        self._margin = "" if title is None else _INDENT

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        if self._title is not None:
            yield Text(self._title, overflow="fold")
        for line in self._lines:
            for folded in fold_spec(line, options.max_width - len(self._margin)):
                yield Text(self._margin + folded, no_wrap=True, overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        margin = len(self._margin)
        title = [] if self._title is None else self._title.split()
        longest = max(map(len, [*self._lines, ""])) + margin
        least = max([len(part) + margin for line in self._lines for part in fold_spec(line, 1)])
        return Measurement(
            max(least, *map(len, title), 1), max(longest, len(self._title or ""))
        ).clamp(max_width=options.max_width)


def fold_spec(line: str, width: int) -> list[str]:
    """The lines of a spec in a column of ``width``; a part without a place to break may be wider."""
    if len(line) <= width:
        return [line]
    return [part for stage in _STAGE.findall(line) for part in _fold_stage(stage, width)]


def _fold_stage(stage: str, width: int) -> Iterator[str]:
    part = ""
    for piece in filter(None, _PIECE.findall(stage)):
        if part.strip() and len(part) + len(piece) > width:
            yield part.rstrip()
            part = _INDENT + piece.lstrip()
        else:
            part += piece
    yield part
