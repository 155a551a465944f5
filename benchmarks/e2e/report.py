"""Tables and pictures of a sweep's results."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from e2e.contenders import BASELINES, EVERY, FP16, Contender, alone
from gradcomp.stopwatch import PHASES
from netlab import bits_per_second

__all__ = ["bookkeeping", "draw", "groups", "machines", "overheads", "peers", "stages", "table"]

Row = dict[str, Any]

BYTES_TOLERANCE = 0.05
NAMED = [phase for phase in PHASES if phase != "error"]  # nobody compares averages here


def groups(rows: Sequence[Row]) -> dict[tuple[str, float, int], list[Row]]:
    """Rows by model, time to compute and number of ranks."""
    found: dict[tuple[str, float, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["model"], row["compute_ms"], row["ranks"]), []).append(row)
    return dict(sorted(found.items()))


def _rates(rows: Sequence[Row]) -> list[str]:
    return sorted({row["rate"] for row in rows}, key=bits_per_second)


def _of(rows: Sequence[Row], contender: str, rate: str) -> Row | None:
    for row in rows:
        if row["contender"] == contender and row["rate"] == rate:
            return row
    return None


def _beside(rows: Sequence[Row], row: Row) -> list[Row]:
    """Rows of the same machine, for comparison."""
    return [other for other in rows if other.get("machine") == row.get("machine")]


def _baseline(rows: Sequence[Row], rate: str, names: Sequence[str] = BASELINES) -> float | None:
    """Seconds of the faster baseline."""
    found = [_of(rows, name, rate) for name in names]
    return min((row["median_seconds"] for row in found if row is not None), default=None)


def _own_baseline(rows: Sequence[Row], rate: str, engine: str) -> float | None:
    """Seconds of the faster of an engine's own methods, float32 and fp16."""
    names = [
        contender.name for contender in EVERY if contender.engine == engine and contender.dense
    ]
    return _baseline(rows, rate, names)


def _times(baseline: float | None, row: Row) -> str:
    return f"{baseline / row['median_seconds']:.1f}x" if baseline else ""


def _present(rows: Sequence[Row]) -> list[Contender]:
    return [c for c in EVERY if any(row["contender"] == c.name for row in rows)]


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line for each contender with the median step at each rate.

    Speed-ups are relative to the better baseline and to the better method of its own engine. Bytes
    are sent by a host in a step.
    """
    rates = _rates(rows)
    lines = [
        "| | MB a step | " + " | ".join(f"{rate}, ms | speed-up | own" for rate in rates) + " |",
        "|---|---:|" + "---:|---:|---:|" * len(rates),
    ]
    for contender in _present(rows):
        of_rates = [_of(rows, contender.name, rate) for rate in rates]
        sent = next(row["interface_bytes"] for row in of_rates if row is not None)
        cells = []
        for row, rate in zip(of_rates, rates, strict=True):
            if row is None:
                cells += ["", "", ""]
                continue
            cells.append(f"{1e3 * row['median_seconds']:.0f}")
            beside = _beside(rows, row)
            cells.append(_times(_baseline(beside, rate), row))
            cells.append(_times(_own_baseline(beside, rate, contender.engine), row))
        lines.append(f"| {contender.name} | {sent / 1e6:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machines(rows: Sequence[Row]) -> str:
    """The machines of the rows, by their ``machine``; empty if none has it."""
    where: dict[str, list[str]] = {}
    for rate in _rates(rows):
        for row in rows:
            if row["rate"] == rate and "machine" in row:
                cells = where.setdefault(row["machine"], [])
                if (cell := f"{row['engine']} at {rate}") not in cells:
                    cells.append(cell)
    if len(where) < 2:
        return "".join(f"On {name}." for name in where)
    items = (f"- {', '.join(cells)}: on {name}" for name, cells in where.items())
    return "\n".join(textwrap.fill(item, 118, subsequent_indent="  ") for item in items)


def overheads(rows: Sequence[Row]) -> str:
    """Markdown: the overhead of a step of each of our contenders.

    That is the time beyond a step without sending and the link's time for its bytes, also as a
    share of the better fp16's step. Empty without the necessary rows.
    """
    lines = []
    for contender in _present(rows):
        for rate in _rates(rows):
            row = _of(rows, contender.name, rate)
            if contender.kind != "ours" or row is None or row.get("simulated"):
                continue
            beside = _beside(rows, row)
            idle = _of(beside, alone(contender.engine), rate)
            if idle is None:
                continue
            wire = 8 * row["interface_bytes"] / row["measured_bits_per_second"]
            rest = row["median_seconds"] - idle["median_seconds"] - wire
            fp16 = _baseline(beside, rate, FP16)
            cells = [row["median_seconds"], idle["median_seconds"], wire, rest]
            part = f"{rest / fp16:.0%}" if fp16 else ""
            numbers = " | ".join(f"{1e3 * cell:.0f}" for cell in cells)
            lines.append(f"| {contender.name} | {rate} | {numbers} | {part} |")
    if not lines:
        return ""
    head = "| | link | step, ms | nothing sent, ms | wire, ms | the rest, ms | of fp16's step |"
    return "\n".join([head, "|---|---|---:|---:|---:|---:|---:|", *lines])


def stages(rows: Sequence[Row]) -> str:
    """Markdown: where the time of a step goes, for contenders with a profile; empty if none.

    The rest is the step less its named parts: the engine, its optimizer, and waiting in it. The wire is
    the link's time for the bytes, hidden or not; it is no further part.
    """
    lines = []
    for rate in _rates(rows):
        for contender in _present(rows):
            row = _of(rows, contender.name, rate)
            if row is None or "phases" not in row:
                continue
            idle = _of(_beside(rows, row), alone(contender.engine), rate)
            if idle is None:
                continue
            parts = [idle["median_seconds"], *(row["phases"][name] for name in NAMED)]
            step = row["median_seconds"]
            wire = 8 * row["interface_bytes"] / row["measured_bits_per_second"]
            numbers = " | ".join(f"{1e3 * s:.0f}" for s in (step, *parts, step - sum(parts), wire))
            lines.append(f"| {contender.name} | {rate} | {numbers} |")
    if not lines:
        return ""
    names = ["step", "nothing sent", *NAMED, "rest", "wire"]
    head = f"| ms | link | {' | '.join(names)} |"
    return "\n".join([head, "|---|---|" + "---:|" * len(names), *lines])


def peers(rows: Sequence[Row]) -> str:
    """Markdown: speed-ups of our contenders over the same algorithms of others; empty if none."""
    rates = _rates(rows)
    lines = []
    for contender in _present(rows):
        cells = []
        for rate in rates:
            row = _of(rows, contender.name, rate)
            peer = _of(_beside(rows, row), contender.same_as, rate) if row else None
            cells.append(_times(peer["median_seconds"], row) if row and peer else "")
        if any(cells):
            lines.append(f"| {contender.name} | {contender.same_as} | " + " | ".join(cells) + " |")
    if not lines:
        return ""
    return "\n".join(
        [f"| | beside | {' | '.join(rates)} |", "|---|---|" + "---:|" * len(rates), *lines]
    )


def bookkeeping(rows: Sequence[Row], dense_bytes: int) -> list[str]:
    """Contenders whose counted bytes differ from the interface's; two ranks only.

    With more ranks, engines send their input more than once. Without compression the bytes must
    equal the gradients'.
    """
    wrong = []
    expected_of = {"Horovod": dense_bytes, "Horovod fp16": dense_bytes // 2}
    for row in rows:
        expected = row["sent_bytes"] or expected_of.get(row["contender"])
        if row["ranks"] != 2 or expected is None:
            continue
        seen = row["interface_bytes"]
        if abs(seen / expected - 1) > BYTES_TOLERANCE:
            wrong.append(
                f"{row['contender']}: {expected:.0f} bytes counted a step, the interface sent "
                f"{seen:.0f}"
            )
    return wrong


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Step time and speed-up against the links' rate, a column for each engine."""
    rates = _rates(rows)
    engines = list(dict.fromkeys(contender.engine for contender in _present(rows)))
    figure, grid = plt.subplots(
        2, len(engines), figsize=(1 + 4.5 * len(engines), 9), squeeze=False, layout="constrained"
    )
    for engine, (upper, lower) in zip(engines, grid.T, strict=True):
        of_engine = [contender for contender in _present(rows) if contender.engine == engine]
        for number, contender in enumerate(of_engine):
            style = _style(contender, number)
            found = [row for rate in rates if (row := _of(rows, contender.name, rate)) is not None]
            x = [bits_per_second(row["rate"]) / 1e6 for row in found]
            upper.plot(x, [row["median_seconds"] for row in found], label=contender.name, **style)
            bases = [_own_baseline(_beside(rows, row), row["rate"], engine) for row in found]
            if contender.kind != "alone" and None not in bases:
                gains = [b / row["median_seconds"] for b, row in zip(bases, found, strict=True)]
                lower.plot(x, gains, **style)
        upper.set(title=engine, ylabel="s, median step")
        lower.set(xlabel="Mbit/s", ylabel="times as fast as the engine's own better way")
        named = upper.get_legend_handles_labels()
        lower.legend(
            *named, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize="small"
        )
        for axis in (upper, lower):
            if any(len(line.get_xdata()) for line in axis.lines):  # the lower axes need baselines
                axis.set(xscale="log", yscale="log")
            axis.grid(visible=True, which="both", alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _style(contender: Contender, number: int) -> dict[str, Any]:
    """Line styles: ours solid, others' dashed, the contender without sending dotted and grey."""
    if contender.kind == "alone":
        return {"linestyle": ":", "color": "grey"}
    ours = contender.kind == "ours"
    look = {"linestyle": "-", "marker": "o"} if ours else {"linestyle": "--", "marker": "x"}
    return {**look, "color": f"C{number}"}
