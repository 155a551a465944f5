"""Errors of pydantic as messages for users."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from gradcomp.config.compose import KeyPath, format_path
from gradcomp.errors import ConfigError, SpecError

__all__ = ["CombinationError", "config_error"]


MOST_PROBLEMS = 20
"""Lines of an error: more hide the first one."""


class CombinationError(ValueError):
    """Values that are allowed, each by itself, and do not fit together; the text has them."""


def config_error(
    error: ValidationError,
    *,
    origin: Callable[[KeyPath], str],
    model_at: Callable[[Sequence[str]], type[BaseModel]],
    form: str,
    at: KeyPath = (),
    reserved: Iterable[str] = (),
) -> ConfigError:
    """A ConfigError with a line for each problem: source, key, value, allowed values, remedy.

    Descriptions of the models' fields give the allowed values.

    Args:
        origin: the file or override that set the value at a path.
        model_at: the model of the mapping at a path below ``at``, list indexes left out.
        form: the allowed value at ``at`` itself.
        at: where in the configuration the validated value stands.
        reserved: known keys there that are not fields of the model.
    """
    problems = error.errors(include_url=False)
    lines = []
    for problem in problems[:MOST_PROBLEMS]:
        path = (*at, *problem["loc"])
        explained = _explain(problem, model_at, form, reserved)
        lines.append(f"{origin(path)}: {format_path(path)}: {explained}")
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"and {len(problems) - MOST_PROBLEMS:,} more problems; correct these first")
    return ConfigError("\n".join(lines))


def _explain(
    problem: Mapping[str, Any],
    model_at: Callable[[Sequence[str]], type[BaseModel]],
    form: str,
    reserved: Iterable[str],
) -> str:
    """The problem at one key, without the key."""
    location = problem["loc"]
    if problem["type"] in ("extra_forbidden", "invalid_key"):
        above = _names(location[:-1])
        known = {*model_at(above).model_fields, *(() if above else reserved)}
        return _unknown_key(str(location[-1]), sorted(known))
    names = _names(location)
    expected = model_at(names[:-1]).model_fields[names[-1]].description if names else form
    if problem["type"] == "missing":
        return f"missing; expected {expected}"
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, SpecError | CombinationError):
        return str(cause)
    got = f"got {reprlib.repr(problem['input'])}" + (f" ({cause})" if cause else "")
    return f"{got}; expected {expected}"


def _names(location: Sequence[object]) -> list[str]:
    return [part for part in location if isinstance(part, str)]


def _unknown_key(key: str, known: Sequence[str]) -> str:
    if "=" in key or ")" in key:
        return 'unknown key; inside { } quote a spec that holds a comma, as in "topk(k=1,...)"'
    near = difflib.get_close_matches(key, known, n=1)
    guess = f", did you mean {near[0]!r}?" if near else ""
    return f"unknown key{guess} (known keys: {', '.join(known)})"
