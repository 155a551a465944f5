"""Measurements of a run and their files: metrics.jsonl, CSV and TensorBoard events."""

from __future__ import annotations

import csv
import json
import math
import os
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from gradcomp.errors import ConfigError

__all__ = [
    "ACCURACY",
    "BITS_PER_CHARACTER",
    "CROSS_ENTROPY",
    "METRICS",
    "EpochRow",
    "Metric",
    "MetricsLog",
    "Score",
    "StepRow",
    "read_rows",
    "write_json",
]


@dataclass(frozen=True)
class Score:
    """The result of a test, over all ranks and predictions.

    Attributes:
        accuracy: share of right predictions.
        test_bits: mean cross-entropy of a prediction, in bits.
    """

    accuracy: float
    test_bits: float

    @property
    def perplexity(self) -> float:
        """2 to the power of ``test_bits``."""
        return 2**self.test_bits if self.test_bits < 1024 else math.inf


@dataclass(frozen=True)
class Metric:
    """The attribute of Score by which a task's models are compared.

    Attributes:
        key: its name in Score and in the rows of epochs.
        title: its name in messages and plots.
        higher_is_better: true of accuracy, false of bits.
        digits: decimals shown in a comparison.
        phrase: a text about a score, as a format of `str.format` with ``score``.
    """

    key: str
    title: str
    higher_is_better: bool
    digits: int
    phrase: str

    def show(self, score: Score) -> str:
        """The phrase, filled in with ``score``."""
        return self.phrase.format(score=score)


ACCURACY = Metric("accuracy", "test accuracy", True, 4, "test accuracy {score.accuracy:.4f}")
BITS_PER_CHARACTER = Metric(
    "test_bits",
    "bits per character",
    False,
    3,
    "test {score.test_bits:.4f} bits per character (perplexity {score.perplexity:.3f}), "
    "accuracy {score.accuracy:.4f}",
)
CROSS_ENTROPY = Metric("test_bits", "test bits", False, 4, "test {score.test_bits:.4f} bits")
"""For any task; it tells runs apart where all are equally accurate."""
METRICS = {metric.key: metric for metric in (ACCURACY, BITS_PER_CHARACTER)}


@dataclass(frozen=True)
class StepRow:
    """One step. Loss: mean over ranks; bytes: sent by rank 0."""

    step: int
    epoch: int
    loss: float
    lr: float
    sent_bytes: int
    sent_bytes_total: int
    seconds: float


@dataclass(frozen=True)
class EpochRow:
    """The part of one epoch that this process has run. Loss and score: over all ranks.

    ``consensus_distance``: with gossip, see `torch_compressors.GossipDataParallel`.
    """

    step: int
    epoch: int
    train_loss: float
    accuracy: float | None
    test_bits: float | None
    sent_bytes_per_step: float
    compression_ratio: float | None
    median_step_seconds: float
    consensus_distance: float | None = None


_KINDS: dict[str, type[StepRow | EpochRow]] = {"step": StepRow, "epoch": EpochRow}


class MetricsLog:
    """Writes rows as they come, on rank 0 only."""

    def __init__(self, output: Path, *, tensorboard: bool, resume_step: int | None) -> None:
        """Start new files in ``output``, or continue the files of a run resumed at a step.

        Raises ConfigError where these have a damaged line.
        """
        # The JSONL file is the record. A resumed run drops the rows after its checkpoint, and
        # writes the CSV files again from the rest.
        path = output / "metrics.jsonl"
        kept = []
        if resume_step is not None and path.exists():
            kept = [row for row in read_rows(path) if row["step"] <= resume_step]
        self._jsonl = path.open("w", encoding="utf-8")
        self._csv_files: dict[str, IO[str]] = {}
        self._csv: dict[str, csv.DictWriter[str]] = {}
        for kind, row_type in _KINDS.items():
            file = (output / f"{kind}s.csv").open("w", encoding="utf-8", newline="")
            self._csv_files[kind] = file
            self._csv[kind] = csv.DictWriter(file, [field.name for field in fields(row_type)])
            self._csv[kind].writeheader()
        for row in kept:
            self._append(row.pop("kind"), row)
        self._tensorboard = None
        if tensorboard:
            # Slow to import, and seldom wanted.
            from torch.utils.tensorboard import SummaryWriter

            purge = None if resume_step is None else resume_step + 1
            self._tensorboard = SummaryWriter(str(output / "tensorboard"), purge_step=purge)

    def write(self, row: StepRow | EpochRow) -> None:
        """Append one row to every file."""
        kind = "step" if isinstance(row, StepRow) else "epoch"
        values = asdict(row)
        self._append(kind, values)
        if self._tensorboard is not None:
            for name in values.keys() - {"step", "epoch"}:
                if values[name] is not None:
                    self._tensorboard.add_scalar(f"{kind}/{name}", values[name], row.step)

    def close(self) -> None:
        """Flush and close every file."""
        for file in (self._jsonl, *self._csv_files.values()):
            file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def _append(self, kind: str, values: Mapping[str, Any]) -> None:
        self._jsonl.write(json.dumps({"kind": kind, **values}) + "\n")
        self._jsonl.flush()  # others follow the file while the run goes on
        self._csv[kind].writerow(values)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut off by a killed process is left out.

    Raises ConfigError naming the first other line that is none of `MetricsLog`.
    """
    rows = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if line.endswith("\n"):
            row = _row_of(line)
            if row is None:
                raise ConfigError(
                    f"{path}, line {number} is damaged: {reprlib.repr(line)}; remove the line"
                )
            rows.append(row)
    return rows


def _row_of(line: str) -> dict[str, Any] | None:
    """The row in a line; None if there is none."""
    try:
        row = json.loads(line)
        names = {"kind", *(field.name for field in fields(_KINDS[row["kind"]]))}
        is_row = set(row) <= names and isinstance(row["step"], int)
    except (KeyError, RecursionError, TypeError, ValueError):
        return None
    return row if is_row else None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` so that ``path`` never holds a part of it."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, default=str)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
