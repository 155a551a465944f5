"""A plug-in of pytest: seconds of tests by part and by file, at the end of a run and in build/durations.json."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from support.scope import FULL

__all__ = ["Durations"]

_LONGEST = 15
"""Files in the table; the file has all."""

_BUDGETS = {
    "tests/codecs": 300,
    "tests/config": 20,
    "tests/engines": 1300,
    "tests/exchange": 40,
    "tests/golden": 40,
    "tests/gossip": 35,
    "tests/gpu": 310,
    "tests/rules": 40,
    "tests/runtime": 40,
    "tests/scripts": 60,
    "tests/tools": 100,
}
"""Seconds of each part in scripts/test, with three processes on two processors."""


class Durations:
    """Adds up the seconds of tests and of their fixtures, over all processes of pytest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test."""
        self._files[report.nodeid.partition("::")[0]] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print and write the table."""
        if not self._files:
            return
        parts: Counter[str] = Counter()
        for file, seconds in self._files.items():
            parts[Path(file).parent.as_posix()] += seconds
        rounded = {file: round(seconds, 2) for file, seconds in self._files.most_common()}
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps(rounded, indent=1) + "\n")
        terminalreporter.section(f"seconds of tests, over all processes ({self._path})")
        for part, seconds in parts.most_common():
            budget = 0 if FULL else _BUDGETS.get(part, 0)
            over = f"  OVER ITS BUDGET of {budget} s" if budget and seconds > budget else ""
            terminalreporter.line(f"{seconds:8.1f}  {part}{over}")
        terminalreporter.line("")
        for file, seconds in self._files.most_common(_LONGEST):
            terminalreporter.line(f"{seconds:8.1f}  {file}")
