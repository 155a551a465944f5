"""Files of metrics: CSV, and the text format of Prometheus."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from gradcomp.errors import ConfigError

__all__ = ["CsvFile", "PrometheusFile"]

_LABELS = {"sent_bytes": "kind", "phase_seconds": "phase"}
"""Label of the part of a name after its second slash, by the part before it; of others ``spec``."""

_COUNTERS = frozenset({"steps", "total_bytes", "link_bytes", "faults", "sent_bytes"})


class CsvFile:
    """A row for each step, and a column for each name that has come so far.

    Args:
        path: an existing file is continued.

    Raises:
        ConfigError: the file is not one of these.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns = ["step"]
        if path.exists() and path.stat().st_size:
            with path.open(encoding="utf-8", newline="") as file:
                self._columns = next(csv.reader(file))
            if self._columns[0] != "step":
                raise ConfigError(
                    f"{path} is no file of metrics: its first column is '{self._columns[0]}' and must be "
                    "'step'; give another path"
                )

    def __call__(self, values: Mapping[str, float], step: int) -> None:
        """Append a row."""
        new = [name for name in values if name not in self._columns]
        if new:
            self._widen([*self._columns, *new])
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns).writerow({"step": step, **values})

    def _widen(self, columns: list[str]) -> None:
        """Write the file again with more columns."""
        rows: Iterable[dict[str, str]] = []
        if self._path.exists():
            with self._path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{self._path.name}.partial")
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(self._path)
        self._columns = columns


class PrometheusFile:
    """The latest values, for the textfile collector of the node exporter, which reads whole files only.

    Args:
        path: replaced as a whole by each row.
        rank: the label ``rank`` of all values.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._path = path
        self._rank = rank

    def __call__(self, values: Mapping[str, float], step: int) -> None:
        """Replace the file."""
        metrics: dict[str, list[str]] = {}
        for name, value in {**values, "gradcomp/step": step}.items():
            prefix, metric, *rest = name.split("/", 2)
            label = f',{_LABELS.get(metric, "spec")}="{rest[0]}"' if rest else ""
            full = f"{prefix}_{metric}{'_total' if metric in _COUNTERS else ''}"
            samples = metrics.setdefault(full, [])
            samples.append(f'{full}{{rank="{self._rank}"{label}}} {float(value)!r}\n')
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # The collector skips names that do not end in .prom.
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
        with partial.open("w", encoding="utf-8") as file:
            for full, samples in metrics.items():
                kind = "counter" if full.endswith("_total") else "gauge"
                file.write(f"# TYPE {full} {kind}\n{''.join(samples)}")
        partial.replace(self._path)
