"""Tables and pictures of a sweep's results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from e2e.contenders import BASELINES, CONTENDERS, FP16, Contender, alone
from netlab import bits_per_second

__all__ = ["bookkeeping", "draw", "groups", "overheads", "peers", "table"]

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


def _baseline(rows: Sequence[Row], rate: str, names: Sequence[str] = BASELINES) -> float | None:
    """Seconds of the faster one of the baselines."""
    found = [_of(rows, name, rate) for name in names]
    return min((row["median_seconds"] for row in found if row is not None), default=None)


def _present(rows: Sequence[Row]) -> list[Contender]:
    return [c for c in CONTENDERS if any(row["contender"] == c.name for row in rows)]


def _names(rows: Sequence[Row]) -> list[str]:
    return [one.name for one in _present(rows)]


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


def overheads(rows: Sequence[Row]) -> str:
    """Markdown: of each contender of this project, what a step takes beyond that of one that sends
    nothing and the time in which the link carries its bytes; also as a part of the step of the
    better fp16. Empty where nothing tells."""
    lines = []
    for one in _present(rows):
        for rate in _rates(rows):
            row, idle = _of(rows, one.name, rate), _of(rows, alone(one.engine), rate)
            if one.kind != "ours" or row is None or idle is None or row.get("simulated"):
                continue
            wire = 8 * row["interface_bytes"] / row["measured_bits_per_second"]
            rest = row["median_seconds"] - idle["median_seconds"] - wire
            fp16 = _baseline(rows, rate, FP16)
            cells = [row["median_seconds"], idle["median_seconds"], wire, rest]
            part = f"{rest / fp16:.0%}" if fp16 else ""
            numbers = " | ".join(f"{1e3 * cell:.0f}" for cell in cells)
            lines.append(f"| {one.name} | {rate} | {numbers} | {part} |")
    if not lines:
        return ""
    head = "| | link | step, ms | nothing sent, ms | wire, ms | the rest, ms | of fp16's step |"
    return "\n".join([head, "|---|---|---:|---:|---:|---:|---:|", *lines])


def peers(rows: Sequence[Row]) -> str:
    """Markdown: how many times as fast contenders of this project are as the same algorithm of
    others. Empty where there is none."""
    rates = _rates(rows)
    lines = []
    for one in _present(rows):
        pairs = [(_of(rows, one.name, rate), _of(rows, one.same_as, rate)) for rate in rates]
        if any(row is not None and peer is not None for row, peer in pairs):
            cells = [
                f"{peer['median_seconds'] / row['median_seconds']:.1f}x" if row and peer else ""
                for row, peer in pairs
            ]
            lines.append(f"| {one.name} | {one.same_as} | " + " | ".join(cells) + " |")
    if not lines:
        return ""
    return "\n".join(
        [f"| | beside | {' | '.join(rates)} |", "|---|---|" + "---:|" * len(rates), *lines]
    )


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
    colours = plt.get_cmap("turbo", len(_names(rows)))
    for number, name in enumerate(_names(rows)):
        kind = next(c.kind for c in CONTENDERS if c.name == name)
        style = {"linestyle": "-" if kind == "ours" else "--", "color": colours(number)}
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
