"""Tables and a picture of a run's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["bits_equal", "draw", "table", "verdict"]

Row = dict[str, Any]

LARGE = 25_000_000
"""Targets hold for so many elements and more."""

HOST_FRAME_MS = 1.0
HOST_BLOCKED_MS = 0.1
FRAME_NUMEL = 25_000_000
"""Size of the bucket for which these two are meant."""


def table(results: Row) -> str:
    """Markdown of all parts that were run."""
    tables: dict[str, Callable[[Any], str]] = {
        "copies": _copies,
        "kernels": _kernels,
        "frames": _frames,
    }
    parts = [str(results["machine"])]
    parts += [show(results[name]) for name, show in tables.items() if name in results]
    for ranks in sorted({row["ranks"] for row in results.get("steps", ())}):
        parts.append(_steps([row for row in results["steps"] if row["ranks"] == ranks]))
    return "\n\n".join([*parts, verdict(results)])


def _copies(copied: Row) -> str:
    rows = [f"| {name} | {speed:.0f} |" for name, speed in copied.items()]
    return "\n".join(["| copy | GB/s |", "|---|---:|", *rows])


def _kernels(rows: Sequence[Row]) -> str:
    head = "| operation, with error feedback | elements | bytes each | ms launched | in a graph | of a copy "
    lines = [head + "| target | others, ms | by |", "|---|---:|---:|---:|---:|---:|---:|---:|---|"]
    for row in rows:
        target = "" if row["target"] is None else f"{row['target']:.2f}"
        target += "" if row["numel"] >= LARGE or not target else " from 25M on"
        cells = [
            _cell(row["name"]),
            f"{row['numel'] / 1e6:g}M",
            f"{row['bytes']:g}",
            *(_ms(row["launched"]), _ms(row["graph"]), f"{row['fraction']:.2f}"),
            *(target, _ms(row["other"]), row["package"] or ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _frames(rows: Sequence[Row]) -> str:
    head = "| bucket | elements | tensors | threads | host blocked, ms | frames, ms "
    lines = [head + "| by the host alone, ms | 8 frames added, ms |", "|---|" + 7 * "---:|"]
    for row in rows:
        numbers = [_ms(row[name]) for name in ("launched", "done", "host", "added")]
        counts = (str(row["tensors"]), str(row["threads"]))
        cells = [_cell(row["name"]), f"{row['numel'] / 1e6:g}M", *counts]
        lines.append(f"| {' | '.join([*cells, *numbers])} |")
    lines += ["", f"Targets with 25M elements: {HOST_BLOCKED_MS} ms blocked, {HOST_FRAME_MS:g} ms."]
    return "\n".join(lines)


def _steps(rows: Sequence[Row]) -> str:
    first = rows[0]
    about = f"Steps, {first['ranks']} process{'es' * (first['ranks'] > 1)} on {first['backend']}"
    if first["reason"]:
        about += f" ({first['reason']})"
    lines = [f"{about}:", "", "| hook | ms a step | parameters |", "|---|---:|---|"]
    for row in rows:
        equal = "equal" if row["equal"] else "DIFFER"
        name = _cell(row["name"])
        lines.append(f"| {name} | {row['ms']:.2f} | {equal} |")
    return "\n".join(lines)


def _cell(name: str) -> str:
    return name.replace("|", "\\|")


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def verdict(results: Row) -> str:
    """The last lines: bits, and how many targets are reached."""
    lines = []
    if "bits" in results:
        cases = sum(row["cases"] for row in results["bits"])
        lines.append(f"bits: {'equal' if bits_equal(results) else 'DIFFER'} in {cases} cases")
    reached = _reached(results)
    if reached:
        lines.append(f"targets: {sum(reached)} of {len(reached)}")
    return "\n".join(lines)


def bits_equal(results: Row) -> bool:
    """Whether no comparison differs, and parameters are equal."""
    differences = sum(row["differences"] for row in results.get("bits", ()))
    return not differences and all(row["equal"] for row in results.get("steps", ()))


def _reached(results: Row) -> list[bool]:
    """For each target, whether it is reached."""
    reached = [
        row["fraction"] >= row["target"]
        for row in results.get("kernels", ())
        if row["target"] is not None and row["numel"] >= LARGE
    ]
    for row in results.get("frames", ()):
        if row["numel"] == FRAME_NUMEL:
            reached += [row["launched"] <= HOST_BLOCKED_MS, row["done"] <= HOST_FRAME_MS]
    return reached


def draw(results: Row, path: Path) -> None:
    """Fractions of a copy's bandwidth beside targets, and whole steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 6), layout="constrained")
    numel = max(row["numel"] for row in results["kernels"])
    rows = [row for row in results["kernels"] if row["numel"] == numel]
    for place, row in enumerate(rows):
        left.barh(place, row["fraction"], color="C0")
        if row["target"] is not None:
            left.plot([row["target"]] * 2, [place - 0.4, place + 0.4], color="black")
    left.set(xlabel="fraction of a copy's bandwidth; lines are targets", xlim=(0, 1.05))
    left.set(title=f"{numel / 1e6:g}M elements, with error feedback")
    left.set_yticks(range(len(rows)), [row["name"] for row in rows])
    steps = results.get("steps", ())
    names = list(dict.fromkeys(row["name"] for row in steps))
    counts = sorted({row["ranks"] for row in steps})
    for ranks in counts:
        of_count = [row for row in steps if row["ranks"] == ranks]
        places = [names.index(row["name"]) + 0.4 * counts.index(ranks) for row in of_count]
        label = f"{ranks} on {of_count[0]['backend']}"
        right.barh(places, [row["ms"] for row in of_count], height=0.4, label=label)
    right.set(xlabel="ms a step", title="processes on one GPU")
    right.set_yticks(range(len(names)), names)
    if counts:
        right.legend()
    for axis in (left, right):
        axis.invert_yaxis()
    figure.suptitle(results["machine"])
    figure.savefig(path, dpi=90)
    plt.close(figure)
