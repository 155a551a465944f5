"""Times of steps on slow links: each rank on a host of its own (benchmarks/netlab), with DDP."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from e2e.machine import machine
from netlab import Lab, run
from proof.cells import AUTO, LOCAL_STEPS, SPECS, TASKS
from proof.training import UNCOMPRESSED

__all__ = ["ALONE", "Times", "measure", "page", "read_times", "write_times"]

ALONE = "nothing sent"
"""What stands instead of a spec for the time of computing alone."""

STEPS = {AUTO: 260}
"""Of specs that take longer until their steps are equal: the ramp of the preset has 100, and a trial up to 132."""

_STEPS = 40
_LAST = 20
"""Equal steps at the end of those that are taken; a multiple of the local steps between two averages."""

_WHOLE = 400
"""Steps of the run whose time is predicted; also those of the learning rates."""

_TIMEOUT = 3600.0


class Times(NamedTuple):
    """Of the steps with one spec behind links of one rate.

    Attributes:
        task, optimizer, ranks: as in `proof.cells.Cell`; specs for SGD alone take that.
        rate: of each link, such as "100mbit".
        measured: bits a second that a link carried.
        machine: the processor.
        spec: a key of `SPECS`, or `ALONE`.
        seconds: of each step from the first one on, for the slowest rank.
    """

    task: str
    optimizer: str
    ranks: int
    rate: str
    measured: float
    machine: str
    spec: str
    seconds: list[float]

    @property
    def step(self) -> float:
        """Seconds of one of the last steps: their median, or the mean of local steps, which are not equal."""
        middle = statistics.fmean if self.spec in LOCAL_STEPS else statistics.median
        return middle(self.seconds[-_LAST:])

    @property
    def whole(self) -> float:
        """Seconds of 400 steps: those that were taken, and as many more as are left."""
        return sum(self.seconds) + (_WHOLE - len(self.seconds)) * self.step


def measure(
    task: str, optimizer: str, ranks: int, rate: str, specs: Iterable[str], logs: Path
) -> list[Times]:
    """Take the steps of all specs in one job.

    Raises:
        LabError, JobError: see netlab.
    """
    steps = {name: STEPS.get(name, _STEPS) for name in specs}
    with Lab(ranks, rate) as lab, tempfile.TemporaryDirectory() as folder:
        measured = lab.measure()
        output, path = Path(folder, "seconds.json"), Path(folder, "order.json")
        order = {"task": task, "optimizer": optimizer, "of": _WHOLE, "steps": steps}
        path.write_text(json.dumps({**order, "output": str(output)}), encoding="utf-8")
        worker = str(Path(__file__).with_name("timed_rank.py"))
        run(lab, "torch", ranks, [sys.executable, worker, str(path)], logs / rate, _TIMEOUT)
        found = json.loads(output.read_text(encoding="utf-8"))
    return [
        Times(task, optimizer, ranks, rate, measured, machine(), name, seconds)
        for name, seconds in found.items()
    ]


def read_times(path: Path) -> list[Times]:
    """The rows of a file; none if there is no file."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [Times(**row) for row in rows]


def write_times(rows: Iterable[Times], folder: Path) -> None:
    """Add rows to times.json, where newer ones replace older ones, and write times.md from it."""
    path = folder / "times.json"
    known = {(*row[:4], row.spec): row for row in [*read_times(path), *rows]}
    lines = ",\n".join(json.dumps(row._asdict()) for row in known.values())
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    (folder / "times.md").write_text(page(list(known.values())), encoding="utf-8")


def page(rows: Sequence[Times]) -> str:
    """Markdown."""
    groups: dict[tuple[str, str, int, str], list[Times]] = {}
    for row in rows:
        groups.setdefault((*row[:3], row.machine), []).append(row)
    parts = [
        "# Times on slow links",
        "Steps of the trainings [on known data](results.md) with DDP, each rank behind a link of its own. All ranks\n"
        "share one machine, so computing takes longer than on separate ones; *nothing sent* is the time of\n"
        "computing alone. The preset `auto` comes with its policy. A run has 400 steps; its time is that of its\n"
        "first 40 steps (`auto`: 260), and of the others at the median of the last 20 of these (local steps: the\n"
        "mean). *sooner* is the time of the uncompressed run over it. Which specs end level with it is on the other\n"
        "page.",
    ]
    for (task, optimizer, ranks, processor), some in groups.items():
        command = f"--task {task} --optimizer {optimizer} --ranks {ranks} --rates {','.join(_rates(some))}"
        names = list(dict.fromkeys(row.spec for row in some))
        if set(names) != {ALONE, *SPECS}:
            command += " --specs " + " ".join(map(shlex.quote, names))
        parts += [
            f"## {task}, {ranks} ranks",
            f"{TASKS[task].title}, {optimizer} (DGC: sgd); {processor}.",
            f"```\n$ python benchmarks/proof times {command}\n```",
            _table(some),
        ]
    return "\n\n".join(parts) + "\n"


def _rates(rows: Iterable[Times]) -> list[str]:
    return list(dict.fromkeys(row.rate for row in rows))


def _table(rows: Sequence[Times]) -> str:
    of = {(row.spec, row.rate): row for row in rows}
    rates = _rates(rows)
    head, rule = "| |", "|---|"
    for rate in rates:
        carried = next(row.measured for row in rows if row.rate == rate)
        head += f" {rate} ({carried / 1e6:.0f} Mbit/s), ms a step | 400 steps, s | sooner |"
        rule += "---:|---:|---:|"
    lines = [head, rule]
    for name in (ALONE, *SPECS):
        if not any((name, rate) in of for rate in rates):
            continue
        cells = []
        for rate in rates:
            row, base = of.get((name, rate)), of.get((UNCOMPRESSED, rate))
            if row is None:
                cells += ["", "", ""]
                continue
            sooner = "" if base is None or name == ALONE else f"{base.whole / row.whole:.1f}"
            cells += [f"{1e3 * row.step:.0f}", f"{row.whole:.1f}", sooner]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
