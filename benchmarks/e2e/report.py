"""Tables and pictures of a sweep's results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from e2e.contenders import BASELINES, CONTENDERS
from netlab import bits_per_second

__all__ = ["bookkeeping", "draw", "groups", "table"]

Row = dict[str, Any]

BYTES_TOLERANCE = 0.05


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


def _baseline(rows: Sequence[Row], rate: str) -> float | None:
    """Seconds of the faster one of the baselines."""
    found = [_of(rows, name, rate) for name in BASELINES]
    return min((row["median_seconds"] for row in found if row is not None), default=None)


def _names(rows: Sequence[Row]) -> list[str]:
    return [c.name for c in CONTENDERS if any(row["contender"] == c.name for row in rows)]


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line for each contender, with the median step at each rate, and how many times as
    fast as the better baseline that is; the bytes that a host sends in a step."""
    rates = _rates(rows)
    lines = [
        "| | MB a step | " + " | ".join(f"{rate}, ms | speed-up" for rate in rates) + " |",
        "|---|---:|" + "---:|---:|" * len(rates),
    ]
    for name in _names(rows):
        own = [_of(rows, name, rate) for rate in rates]
        sent = next(row["interface_bytes"] for row in own if row is not None)
        cells = []
        for row, rate in zip(own, rates, strict=True):
            baseline = _baseline(rows, rate)
            if row is None:
                cells += ["", ""]
                continue
            seconds = row["median_seconds"]
            cells.append(f"{1e3 * seconds:.0f}")
            cells.append(f"{baseline / seconds:.1f}x" if baseline else "")
        lines.append(f"| {name} | {sent / 1e6:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bookkeeping(rows: Sequence[Row], dense_bytes: int) -> list[str]:
    """Where the bytes counted are not those that the interface sent; two ranks only.

    With more, engines send what they are given more than once. Without compression the bytes are
    those of the gradients.
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
    """Step time and speed-up against the links' rate."""
    rates = _rates(rows)
    x = [bits_per_second(rate) / 1e6 for rate in rates]
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    for number, name in enumerate(_names(rows)):
        kind = next(c.kind for c in CONTENDERS if c.name == name)
        style = {"linestyle": "-" if kind == "ours" else "--", "color": f"C{number % 10}"}
        style["marker"] = "o" if kind == "ours" else "x"
        times = [(at, _of(rows, name, rate), rate) for at, rate in zip(x, rates, strict=True)]
        found = [(at, row["median_seconds"], rate) for at, row, rate in times if row is not None]
        left.plot([at for at, _, _ in found], [s for _, s, _ in found], label=name, **style)
        gains = [(at, base / s) for at, s, r in found if (base := _baseline(rows, r)) is not None]
        right.plot([at for at, _ in gains], [gain for _, gain in gains], **style)
    left.set(xlabel="Mbit/s", ylabel="s", title="Median step")
    right.set(xlabel="Mbit/s", title="Times as fast as the better of Horovod and Horovod fp16")
    for axis in (left, right):
        if any(len(line.get_xdata()) for line in axis.lines):  # the right one needs baselines
            axis.set(xscale="log", yscale="log")
        axis.grid(visible=True, which="both", alpha=0.3)
    figure.suptitle(title)
    figure.legend(loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)
