"""Runs the jobs of a sweep, and keeps their results."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from e2e.contenders import Contender
from e2e.machine import machine
from e2e.model import random_numbers
from e2e.simulated import simulate
from netlab import Lab, bits_per_second, hosts_of, run

__all__ = ["Cell", "Results", "Sweep"]

_TIMEOUT = 3600.0

# Reuse the memory of gradients in the next step, as accelerators' allocators do. By default the C
# library returns it to the system, which takes longer than a step's arithmetic; that of tensors above
# 32 MiB even with a higher threshold.
_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


@dataclass(frozen=True)
class Cell:
    """The conditions of a comparison.

    Attributes:
        model: one of gradcomp.tools.model_shapes.MODELS.
        compute_ms: duration of a step's forward and backward pass.
        ranks: number of ranks, each on a host of its own.
        rate: rate of each host's link.
    """

    model: str
    compute_ms: float
    ranks: int
    rate: str


class Results:
    """A JSON file with a row for each cell and contender; newer rows replace older ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = json.loads(path.read_text(encoding="utf-8"))

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add rows, and write the file."""
        keys = ("model", "compute_ms", "ranks", "rate", "contender")
        known = {tuple(row[key] for key in keys): row for row in self.rows}
        known |= {tuple(row[key] for key in keys): row for row in rows}
        self.rows = list(known.values())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(row) for row in self.rows)
        self.path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


class Sweep:
    """The jobs of some contenders in some cells: one for each engine and cell.

    Args:
        logs: folder for the logs of all jobs.
        steps: timed steps of each contender, at least 5 with compression; None: 2 to 8, fewer on
            slow links.
        warmup: untimed steps before, at least 3 with compression.
        environment: further variables of all ranks.
        profile: also measure the phases of our contenders' steps.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        logs: Path,
        steps: int | None = None,
        warmup: int = 2,
        environment: Mapping[str, str] | None = None,
        profile: bool = False,
    ) -> None:
        self._contenders = contenders
        self._logs = logs
        self._steps = steps
        self._warmup = warmup
        self._profile = profile
        variables = {**_MEMORY, **(environment or {})}
        self._environment = [f"{name}={value}" for name, value in variables.items()]

    def run(self, cell: Cell) -> Iterator[list[dict[str, Any]]]:
        """The rows of one cell, engine by engine.

        Raises:
            LabError, JobError: see netlab.
        """
        engines = list(dict.fromkeys(contender.engine for contender in self._contenders))
        hosts = max(hosts_of(engine, cell.ranks) for engine in engines)
        with Lab(hosts, cell.rate) as lab:
            measured = lab.measure()
            of_all = {
                **asdict(cell),
                "machine": machine(),
                "measured_bits_per_second": measured,
            }
            for engine in engines:
                yield [{**of_all, **row} for row in self._job(lab, engine, cell)]

    def simulate(self, cell: Cell) -> list[dict[str, Any]]:
        """The same, computed, for the contenders that support it."""
        fields = asdict(cell)
        rows = (simulate(contender, **fields) for contender in self._contenders)
        return [{**fields, **row} for row in rows if row is not None]

    def _job(self, lab: Lab, engine: str, cell: Cell) -> list[dict[str, Any]]:
        of_engine = [contender for contender in self._contenders if contender.engine == engine]
        speed = bits_per_second(cell.rate)
        steps = self._steps or (2 if speed < 5e7 else 4 if speed < 5e8 else 8)
        order: dict[str, Any] = {
            "engine": engine,
            "contenders": [asdict(contender) for contender in of_engine],
            "model": cell.model,
            "compute_ms": cell.compute_ms,
            "warmup": self._warmup,
            "steps": steps,
            "profile": self._profile,
        }
        with tempfile.TemporaryDirectory() as folder:
            order["numbers"] = str(Path(folder, "numbers"))
            random_numbers(cell.model, cell.ranks).numpy().tofile(order["numbers"])
            path = Path(folder, "order.json")
            path.write_text(json.dumps(order), encoding="utf-8")
            worker = str(Path(__file__).with_name("worker.py"))
            logs = self._logs / f"{engine}-{cell.model}-{cell.ranks}-{cell.rate}"
            command = ["env", *self._environment, sys.executable, worker, str(path), folder]
            run(lab, engine, cell.ranks, command, logs, _TIMEOUT)
            files = [Path(folder, f"rank-{rank}.json") for rank in range(cell.ranks)]
            of_ranks = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        return [
            {"engine": engine, "contender": contender.name, **_merged(of_ranks, contender.name)}
            for contender in of_engine
        ]


def _merged(of_ranks: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """One contender's results: a step takes as long as for its slowest rank."""
    of_contender = [results[name] for results in of_ranks]
    seconds = [
        max(step) for step in zip(*(result["seconds"] for result in of_contender), strict=True)
    ]
    counted = [result["sent_bytes"] for result in of_contender]
    # Ranks wait for each other: their means would hide a slow one.
    phases = of_contender[0]["phases"]
    return {
        **({} if phases is None else {"phases": phases}),
        "median_seconds": statistics.median(seconds),
        "seconds": [round(step, 6) for step in seconds],
        "sent_bytes": None if None in counted else statistics.mean(counted),
        **{
            key: statistics.mean(result[key] for result in of_contender)
            for key in ("interface_bytes", "idle_bytes_per_second", "idle_processors")
        },
    }
