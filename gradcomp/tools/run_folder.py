"""Files of a training run: metrics of scripts/train.py, and profiles of ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradcomp.errors import GradcompError
from gradcomp.tools import run_values as values

__all__ = ["Row", "RunFolder", "read_run", "read_runs"]

Row = Mapping[str, Any]

_METRICS, _PROFILE_FILE = "metrics.jsonl", "rank0.jsonl"

_LEVELS = 4
"""Levels of folders below a given one that are searched for runs."""

_KEYS = 16
"""Levels of settings that are shown one by one."""

_HOME = "give the output folder of scripts/train.py, the folder of stats.profile, or a folder that has them"


@dataclass(frozen=True)
class RunFolder:
    """The content of one folder; rows that cannot be read are left out.

    Attributes:
        label: the folder's path, as given.
        facts: of ``summary.json`` or, while the run goes on, of ``run.json``; empty without both.
        steps: rows of steps in ``metrics.jsonl``: "step", "loss", "sent_bytes_total", "seconds", ...
        epochs: rows of epochs there: "step", "accuracy", "test_bits", ...
        profile: steps of the first rank's profile; see `gradcomp.runtime.measure.profile_files.row_of`.
        warnings: a line for each file with parts that were left out.
    """

    label: str
    facts: Row
    steps: list[Row]
    epochs: list[Row]
    profile: list[Row]
    warnings: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, str]:
        """The configuration and what else was chosen, by dotted key."""
        chosen = {
            key: self.facts[key]
            for key in ("task", "framework", "world_size", "parameters", "config", "versions")
            if key in self.facts
        }
        config = chosen.pop("config", None) or {}
        if not isinstance(config, dict):
            config = {"config": config}
        return {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in _flat({**chosen, **config}).items()
        }


def read_runs(folder: Path) -> tuple[list[RunFolder], list[str]]:
    """The run in a folder, or all runs in the folders below it, by path, at most `_LEVELS` down.

    Returns:
        At least one run, and a line for each problem that did not prevent it.

    Raises:
        GradcompError: there is no run.
    """
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise GradcompError(f"'{folder}' {problem}: {_HOME}")
    if _is_run(folder):
        run = read_run(folder)
        return [run], list(run.warnings)
    places = list(_runs_below(folder, _LEVELS))
    if not places:
        raise GradcompError(
            f"'{folder}' has neither {_METRICS} nor the {_PROFILE_FILE} of a profile, nor has a folder "
            f"in it: {_HOME}"
        )
    runs, warnings = [], []
    for place in places:
        try:
            run = read_run(place)
        except GradcompError as error:
            warnings.append(str(error))
        else:
            runs.append(run)
            warnings += run.warnings
    if not runs:
        raise GradcompError("\n".join(warnings))
    # The profile that a run writes elsewhere is a part of that run.
    configured = [_configured_profile(run.facts) for run in runs]
    shown = {profile.resolve() for profile in configured if profile is not None}
    return [
        run for run in runs if run.steps or run.epochs or Path(run.label).resolve() not in shown
    ], warnings


def read_run(folder: Path) -> RunFolder:
    """Read a folder: the output of scripts/train.py, or of ``stats.profile``, or both.

    A run that writes its profile elsewhere names the folder in its configuration.

    Raises:
        GradcompError: no row of either can be read.
    """
    warnings: list[str] = []
    facts: Row = {}
    for name in ("summary.json", "run.json"):
        if not facts and (folder / name).is_file():
            facts = next(iter(_rows(folder / name, warnings, whole=True)), {})
    metrics = folder / _METRICS
    rows = _rows(metrics, warnings, _metrics_problem) if metrics.is_file() else []
    profile: list[Row] = []
    for place in (folder, _configured_profile(facts)):
        if place and not profile and (place / _PROFILE_FILE).is_file():
            profile = _rows(place / _PROFILE_FILE, warnings, values.profile_problem)
    if not rows and not profile:
        reason = "; ".join(warnings) or "no step has ended yet, or the files are empty"
        raise GradcompError(f"'{folder}' has no rows of a run ({reason}): {_HOME}")
    for key in ("loss", "accuracy", "test_bits"):
        steps = [row["step"] for row in rows if not math.isfinite(row.get(key) or 0)]
        if steps:
            warnings.append(
                f"{metrics}: '{key}' is not finite in {len(steps):,} rows, the first of step {steps[0]}"
            )
    by_kind = {
        kind: list({row["step"]: row for row in rows if row["kind"] == kind}.values())
        for kind in ("step", "epoch")
    }
    return RunFolder(
        str(folder),
        facts,
        sorted(by_kind["step"], key=_step_of),
        sorted(by_kind["epoch"], key=_step_of),
        sorted({row["step"]: row for row in profile}.values(), key=_step_of),
        tuple(warnings),
    )


def _step_of(row: Row) -> int:
    step: int = row["step"]
    return step


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (_METRICS, _PROFILE_FILE))


def _runs_below(folder: Path, levels: int) -> Iterator[Path]:
    """Folders of runs, in the order of their paths; what is inside a run is a part of it."""
    if levels == 0:
        return
    for place in sorted(folder.iterdir()):
        if place.is_symlink() or not place.is_dir():
            continue
        if _is_run(place):
            yield place
        else:
            yield from _runs_below(place, levels - 1)


def _metrics_problem(row: Row) -> str | None:
    if row.get("kind") not in ("step", "epoch"):
        return values.must_be("kind", row.get("kind"), "step or epoch")
    return values.step_problem(row) if row["kind"] == "step" else values.epoch_problem(row)


def _configured_profile(facts: Row) -> Path | None:
    try:
        configured = facts["config"]["stats"]["profile"]
    except (KeyError, TypeError):
        return None
    return Path(configured) if isinstance(configured, str) and "\0" not in configured else None


def _rows(
    path: Path,
    warnings: list[str],
    problem_of: Callable[[Row], str | None] = lambda row: None,
    *,
    whole: bool = False,
) -> list[Row]:
    """The objects in a file, one a line; or the ``whole`` file as one object.

    A last line without an end is left out: its run is still writing it.

    Args:
        warnings: gets a line if anything else is left out.
        problem_of: says why a row cannot be used; None if it can.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    parts = [text] if whole else text.split("\n")[:-1]
    rows: list[Row] = []
    problems: list[str] = []
    for number, part in enumerate(parts, 1):
        row, problem = _parsed(part)
        problem = problem or problem_of(row)
        if problem is None:
            rows.append(row)
        else:
            problems.append(f"line {number}: {problem}")
    if problems:
        more = f", and {len(problems) - 1:,} more lines" if len(problems) > 1 else ""
        warnings.append(f"{path}, {problems[0]}{more}")
    return rows


def _parsed(text: str) -> tuple[Row, str | None]:
    """An object, and what is wrong with the text."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {}, f"no JSON: {error}"
    if not isinstance(row, dict):
        return {}, f"a {type(row).__name__}, not an object"
    return row, None


def _flat(value: Row, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Leaves of nested mappings by dotted key."""
    leaves: dict[str, Any] = {}
    for key, item in value.items():
        names = (*prefix, key)
        if not isinstance(item, dict) or not item:
            leaves[".".join(names)] = item
        elif len(names) < _KEYS:
            leaves |= _flat(item, names)
        else:
            leaves[".".join(names)] = "..."
    return leaves
