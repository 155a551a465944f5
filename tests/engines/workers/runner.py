"""Runs cases on every rank of a job and reports on each, whatever the framework.

A case is a function without arguments. It passes when it returns, with a value for JSON, and fails
when it raises. The ranks run the same cases in the same order.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

CASE_LIMIT = 240
"""Seconds after which a case that hangs ends its rank, with the stacks of all threads."""


class Cases(dict[str, Callable[[], Any]]):
    """Cases by name; as a decorator it adds a function."""

    def __call__(self, function: Callable[[], Any]) -> Callable[[], Any]:
        self[function.__name__] = function
        return function


def refused(function: Callable[[], Any], kind: type[Exception], *parts: str) -> str:
    """Check that ``function`` raises ``kind`` with all ``parts`` in its message; returns the message."""
    try:
        function()
    except kind as error:
        message = str(error)
    except Exception as error:
        raise AssertionError(
            f"{type(error).__name__} instead of {kind.__name__}: {error}"
        ) from error
    else:
        raise AssertionError(f"no {kind.__name__}")
    for part in parts:
        assert part in message, f"'{part}' is not in the message: {message}"
    return message


def run(rank: int, barrier: Callable[[], Any], reports: str, modules: Sequence[str]) -> None:
    """Run the cases of modules of ``workers``, and write a line for each.

    ``MODULE:ATTRIBUTE`` names the attribute with the cases; the default is ``cases``.

    Args:
        barrier: waits for all ranks.
        reports: the folder to write to.
    """
    cases: dict[str, Callable[[], Any]] = {}
    for module in modules:
        path, _, attribute = module.partition(":")
        added = getattr(importlib.import_module(f"workers.{path}"), attribute or "cases")
        assert not cases.keys() & added, (
            f"{path} has cases of other modules: {cases.keys() & added}"
        )
        cases.update(added)
    report(cases, rank, reports, barrier)


def report(
    cases: Mapping[str, Callable[[], Any]],
    rank: int,
    reports: str,
    barrier: Callable[[], Any] = lambda: None,
) -> None:
    """Run cases, and write a line for each as soon as it has ended.

    Args:
        cases: functions by name.
        rank: this rank.
        reports: the folder to write to.
        barrier: called after each case; no rank ends while others need it.
    """
    with (Path(reports) / f"rank{rank}.jsonl").open("w", buffering=1) as file:
        for name, function in cases.items():
            faulthandler.dump_traceback_later(CASE_LIMIT, exit=True)
            value = error = None
            began = time.monotonic()
            try:
                value = function()
            except Exception:
                error = traceback.format_exc()
            seconds = round(time.monotonic() - began, 2)
            row = {"case": name, "value": value, "error": error, "seconds": seconds}
            file.write(json.dumps(row) + "\n")
            barrier()
    faulthandler.cancel_dump_traceback_later()
