"""Files of a training run: metrics of scripts/train.py, and profiles of ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

from gradcomp.errors import GradcompError

__all__ = ["Row", "RunFolder", "read_run"]

Row = Mapping[str, Any]

# The values that a report needs of each kind of row.
_STEP: dict[str, type | UnionType] = {
    "step": int,
    "loss": int | float,
    "sent_bytes": int,
    "sent_bytes_total": int,
    "seconds": int | float,
}
_EPOCH: dict[str, type | UnionType] = {
    "step": int,
    "accuracy": int | float | None,
    "test_bits": int | float | None,
}
_PROFILE: dict[str, type | UnionType] = {
    "step": int,
    "seconds": int | float,
    "phases": dict,
    "sent_bytes": dict,
}


@dataclass(frozen=True)
class RunFolder:
    """The content of one folder.

    Attributes:
        label: the folder's path, as given.
        facts: of ``summary.json`` or, while the run goes on, of ``run.json``; empty without both.
        steps: rows of steps in ``metrics.jsonl``: "step", "loss", "sent_bytes_total", "seconds", ...
        epochs: rows of epochs there: "step", "accuracy", "test_bits", ...
        profile: steps of the first rank's profile; see `gradcomp.runtime.measure.profile_files.row_of`.
    """

    label: str
    facts: Row
    steps: list[Row]
    epochs: list[Row]
    profile: list[Row]

    @property
    def settings(self) -> dict[str, str]:
        """The configuration and what else was chosen, by dotted key."""
        chosen = {
            key: self.facts[key]
            for key in ("task", "framework", "world_size", "parameters", "config", "versions")
            if key in self.facts
        }
        config = chosen.pop("config", None) or {}
        return {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in _flat({**chosen, **config}).items()
        }


def read_run(folder: Path) -> RunFolder:
    """Read a folder: the output of scripts/train.py, or of ``stats.profile``, or both.

    A run that writes its profile elsewhere names the folder in its configuration.

    Raises:
        GradcompError: there is neither, or a file is damaged.
    """
    facts: Row = {}
    for name in ("summary.json", "run.json"):
        if not facts and (folder / name).is_file():
            (facts,) = _rows(folder / name, whole=True)
    metrics = folder / "metrics.jsonl"
    rows = _rows(metrics) if metrics.is_file() else []
    profile = _profile(folder, facts)
    if not rows and not profile:
        raise GradcompError(
            f"'{folder}' has neither metrics.jsonl nor the rank0.jsonl of a profile: give the output "
            "folder of scripts/train.py, or the folder of stats.profile"
        )
    return RunFolder(
        str(folder),
        facts,
        _checked([row for row in rows if row.get("kind") == "step"], _STEP, metrics),
        _checked([row for row in rows if row.get("kind") == "epoch"], _EPOCH, metrics),
        profile,
    )


def _checked(rows: list[Row], kinds: Mapping[str, type | UnionType], path: Path) -> list[Row]:
    """The rows, after a check that each has all these values."""
    for row in rows:
        for key, kind in kinds.items():
            if not isinstance(row.get(key), kind):
                raise GradcompError(
                    f"{path}: '{key}' is {row.get(key)!r} in the row {json.dumps(row):.80}; it must be "
                    f"{_kind_text(kind)}"
                )
    return rows


def _kind_text(kind: type | UnionType) -> str:
    texts: dict[object, str] = {int: "an integer", dict: "an object", int | float: "a number"}
    return texts.get(kind, "a number or null")


def _profile(folder: Path, facts: Row) -> list[Row]:
    try:
        configured = facts["config"]["stats"]["profile"]
    except (KeyError, TypeError):
        configured = None
    for place in (folder, *([] if configured is None else [Path(configured)])):
        path = place / "rank0.jsonl"
        if path.is_file():
            return _checked(_rows(path), _PROFILE, path)
    return []


def _rows(path: Path, *, whole: bool = False) -> list[Row]:
    """The objects in a file, one a line; or the ``whole`` file as one object.

    A last line without an end is left out: its run is still writing it.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    parts = [text] if whole else text.split("\n")[:-1]
    rows: list[Row] = []
    for number, part in enumerate(parts, 1):
        try:
            row = json.loads(part)
        except ValueError as error:
            raise GradcompError(f"{path}, line {number}: no JSON: {error}") from error
        if not isinstance(row, dict):
            raise GradcompError(f"{path}, line {number}: a {type(row).__name__}, not an object")
        rows.append(row)
    return rows


def _flat(value: Row, prefix: str = "") -> dict[str, Any]:
    """Leaves of nested mappings by dotted key."""
    leaves: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict) and item:
            leaves |= _flat(item, f"{name}.")
        else:
            leaves[name] = item
    return leaves
