"""Checks of the values that a report needs of each row of a run's files."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["epoch_problem", "must_be", "profile_problem", "step_problem"]

Row = Mapping[str, Any]
Check = Callable[[object], bool]


def must_be(key: str, value: object, allowed: str) -> str:
    """A message about a value in a row."""
    return f"'{key}' is {reprlib.repr(value)}; it must be {allowed}"


def _is_number(value: object) -> bool:
    """NaN and infinities are numbers, too: losses have them when training diverges."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 2**63


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_quantity(value: object) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]


def _mapping_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


_COUNT = (_is_count, "an integer >= 0")
_NUMBER = (_is_number, "a number")
_QUANTITY = (_is_quantity, "a number >= 0")

_STEP = {
    "step": _COUNT,
    "loss": _NUMBER,
    "sent_bytes": _COUNT,
    "sent_bytes_total": _COUNT,
    "seconds": _QUANTITY,
}
_EPOCH = {
    "step": _COUNT,
    "accuracy": (_or_none(_is_number), "a number or null"),
    "test_bits": (_or_none(_is_number), "a number or null"),
    "sent_bytes_per_step": (_or_none(_is_quantity), "a number >= 0 or null"),
    "median_step_seconds": (_or_none(_is_quantity), "a number >= 0 or null"),
}
_PROFILE = {
    "step": _COUNT,
    "seconds": _QUANTITY,
    "phases": (_mapping_of(_is_quantity), "an object of numbers >= 0"),
    "sent_bytes": (_mapping_of(_is_quantity), "an object of numbers >= 0"),
    "vnmse": (_or_none(_is_number), "a number or null"),
    "errors": (_or_none(_mapping_of(_or_none(_is_number))), "an object of numbers, or null"),
}


def _problem(row: Row, checks: Mapping[str, tuple[Check, str]]) -> str | None:
    for key, (is_valid, allowed) in checks.items():
        if not is_valid(row.get(key)):
            return must_be(key, row.get(key), allowed)
    return None


def step_problem(row: Row) -> str | None:
    """What is wrong with a row of a step in metrics.jsonl; None if nothing is."""
    return _problem(row, _STEP)


def epoch_problem(row: Row) -> str | None:
    """What is wrong with a row of an epoch in metrics.jsonl; None if nothing is."""
    return _problem(row, _EPOCH)


def profile_problem(row: Row) -> str | None:
    """What is wrong with a row of a profile; None if nothing is."""
    return _problem(row, _PROFILE)
