"""The picture and the table of docs/which-compressor.md, from the measured results in this repository.

Errors of single gradients are from the survey in benchmarks/README.md, results of training from
docs/results/README.md, steps from docs/results/e2e/results.json. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from e2e.contenders import CONTENDERS, Contender
from gradcomp.tools.advise.accuracy import Comparison, accuracy_text
from gradcomp.tools.plotting import label_points, new_figure

ROOT = Path(__file__).resolve().parents[1]

# Okabe and Ito's colours, distinguishable by colour-blind people and in print.
FAMILIES = {
    "uncompressed": ("#000000", ("uncompressed", "identity")),
    "16 to 4 bits per element": ("#E69F00", ("fp16", "bf16", "fp8", "int8", "int4", "uniform")),
    "1 or 2 bits": ("#56B4E9", ("sign", "drive", "eden", "terngrad")),
    "largest elements": ("#0072B2", ("topk", "top-k", "DGC")),
    "low rank": ("#009E73", ("PowerSGD",)),
    "polar codes": ("#CC79A7", ("polar",)),
    "adaptive": ("#D55E00", ("adaptive",)),
}
"""The label of a family, its colour, and the beginnings of its methods' names."""

MODEL, RANKS = "resnet50", 4
RATES = {"100mbit": ("100 Mbit/s", "o"), "1gbit": ("1 Gbit/s", "s"), "10gbit": ("10 Gbit/s", "^")}
ENGINES = {"horovod": "Horovod (Gloo)", "mpi": "Horovod (MPI)", "torch": "DDP", "byteps": "BytePS"}

_DPI = 130


class Trained(NamedTuple):
    """One run of a comparison by training.

    Attributes:
        worse: result beyond that of the uncompressed run; more is worse.
        level: as `gradcomp advise` counts it.
        kilobytes: that a rank hands over in a step of the last epoch.
    """

    name: str
    worse: float
    level: bool
    kilobytes: float


def colour(name: str) -> str:
    """The colour of a method, the engine's own or ours."""
    for code, beginnings in FAMILIES.values():
        if name.removeprefix("our ").startswith(beginnings):
            return code
    raise KeyError(name)


def survey_errors() -> dict[str, tuple[float, float]]:
    """Codec -> bits per element, and error on the transformer's recorded gradients."""
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    table = page.split("digits-cnn  char-transformer\n")[1].split("\n\n")[0]
    number = r"([\d.e+-]+)"
    row = re.compile(rf"^([a-z]\w*)\S* +{number} +{number} +{number}$", re.MULTILINE)
    return {name: (float(bits), float(error)) for name, bits, _, error in row.findall(table)}


def training_runs(section: str) -> tuple[float, list[Trained]]:
    """The spread of a section's uncompressed seeds, and its runs, the uncompressed one first."""
    page = (ROOT / "docs/results/README.md").read_text(encoding="utf-8")
    text = page.split(f"\n## {section}\n")[1].split("\n#")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    head, _, *rows = [row for row in rows if row]
    result, sent = head.index("bits per character"), head.index("last epoch")
    numbers = [[float(number) for number in row[result].split(" ± ")] for row in rows]
    base, spread = numbers[0]
    runs = []
    for row, (mean, own_spread) in zip(rows, numbers, strict=True):
        compared = Comparison("", section, row[0], head[result], base, spread, mean, own_spread)
        runs.append(Trained(row[0], mean - base, compared.level, _kilobytes(row[sent])))
    return spread, runs


def _kilobytes(text: str) -> float:
    value, unit = text.split(" ")
    return float(value) * {"bytes": 1e-3, "kB": 1.0, "MB": 1e3}[unit]


def steps() -> dict[tuple[str, str], Mapping[str, Any]]:
    """Contender, rate -> its steps."""
    saved = json.loads((ROOT / "docs/results/e2e/results.json").read_text(encoding="utf-8"))
    return {
        (row["contender"], row["rate"]): row
        for row in saved
        if (row["model"], row["ranks"]) == (MODEL, RANKS)
    }


def draw(path: Path) -> None:
    """Write the picture."""
    figure = new_figure(13, 10.5)
    figure.set_dpi(_DPI)  # labels are placed in pixels
    (errors, times), (long, short) = figure.subplots(2, 2)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    for axes in (errors, times, long, short):
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    short.sharex(long)
    short.sharey(long)
    points = [_draw_errors(errors), _draw_times(times)]
    points += [
        _draw_training(long, "char-transformer", "Character transformer, 8000 steps"),
        _draw_training(short, "Equal bits: char-transformer", "Character transformer, 1000 steps"),
    ]
    _explain_marks(long)
    from matplotlib.lines import Line2D

    families = [
        Line2D([], [], marker="o", linestyle="", color=code, label=label)
        for label, (code, _) in FAMILIES.items()
    ]
    figure.legend(handles=families, loc="outside lower center", ncols=len(families), frameon=False)
    figure.suptitle("Left and down is better", fontweight="bold")
    for axes, some in zip((errors, times, long, short), points, strict=True):
        label_points(axes, some)
    figure.savefig(path, dpi=_DPI)


def _draw_errors(axes: Any) -> list[tuple[float, float, str]]:
    known = tuple(name for _, names in FAMILIES.values() for name in names)
    points = []
    for name, (bits, error) in survey_errors().items():
        if error > 0 and name.startswith(known):
            axes.plot(bits, 100 * error, "o", color=colour(name))
            points.append((bits, 100 * error, name))
    axes.set(yscale="log", xlabel="bits per element", ylabel="% of the gradient's squared norm")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(
        "Error of one gradient of a character transformer", loc="left", fontweight="bold"
    )
    return points


def _draw_times(axes: Any) -> list[tuple[float, float, str]]:
    found, points = steps(), []
    for contender in CONTENDERS:
        rows = {
            rate: row for rate in RATES if (row := found.get((contender.name, rate))) is not None
        }
        if (
            contender.engine != "horovod"
            or contender.kind == "alone"
            or "auto" in contender.name
            or not rows
        ):
            continue
        name = contender.name.removeprefix("Horovod").strip() or "uncompressed"
        places = []
        for rate, row in rows.items():
            place = row["interface_bytes"] / 1e6, row["median_seconds"]
            axes.plot(*place, RATES[rate][1], color=colour(name))
            places.append(place)
        axes.plot(*zip(*places, strict=True), color=colour(name), linewidth=0.8)
        points.append((*max(places, key=lambda place: place[1]), name))
    alone = found["Horovod alone", "100mbit"]["median_seconds"]
    axes.axhline(alone, color="#888888", linestyle=":", label="nothing sent")
    for text, marker in RATES.values():
        axes.plot([], [], marker, color="#888888", label=text)
    axes.set(
        yscale="log",
        xlim=(0.35, 300),
        xlabel="MB through a host's link in a step",
        ylabel="s for a step",
    )
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(loc="upper left", frameon=False)
    axes.set_title("Steps of ResNet-50 on 4 hosts, Horovod", loc="left", fontweight="bold")
    return points


def _draw_training(axes: Any, section: str, title: str) -> list[tuple[float, float, str]]:
    spread, runs = training_runs(section)
    runs = [run for run in runs if not run.name.startswith("basis")]  # beside adaptive
    axes.axhspan(-spread, spread, color="#eeeeee", zorder=0)
    for run in runs:
        face = colour(run.name) if run.level else "white"
        axes.plot(
            run.kilobytes, run.worse, "o", color=colour(run.name), markerfacecolor=face, zorder=3
        )
    axes.set(xlabel="kB that a rank hands over in a step", ylabel="bits per character more")
    axes.set_title(title, loc="left", fontweight="bold")
    return [(run.kilobytes, run.worse, run.name) for run in runs]


def _explain_marks(axes: Any) -> None:
    """A legend for both panels of training."""
    axes.fill_between([], [], [], color="#eeeeee", label="spread of uncompressed seeds")
    for label, face in (
        ("level with uncompressed", "#888888"),
        ("worse than both spreads", "white"),
    ):
        axes.plot([], [], "o", color="#888888", markerfacecolor=face, label=label)
    axes.legend(loc="upper left", frameon=False)


def table() -> str:
    """Markdown: steps as multiples of the speed of the engine's own better method, by spec.

    A cell has the speeds at each rate.
    """
    found = steps()
    rows: dict[str, dict[str, Contender]] = {}
    for contender in CONTENDERS:
        measured = any(name == contender.name for name, _ in found)
        if (
            measured
            and contender.kind in ("none", "fp16", "ours")
            and "policy" not in contender.spec
        ):
            rows.setdefault(_row_name(contender), {})[contender.engine] = contender
    lines = [
        "| spec | MB | " + " | ".join(ENGINES.values()) + " | level |",
        "|---|---:|" + "---:|" * len(ENGINES) + "---:|",
    ]
    for name, contenders in rows.items():
        first = next(iter(contenders.values()))
        cells = [_speeds(found, contenders.get(engine)) for engine in ENGINES]
        megabytes = f"{found[first.name, '100mbit']['interface_bytes'] / 1e6:.1f}"
        spec = first.spec.split(" ")[0] if first.kind == "ours" else first.kind
        level = "" if spec == "none" else accuracy_text(spec)
        lines.append("| " + " | ".join([name, megabytes, *cells, level]) + " |")
    return "\n".join(lines)


def _row_name(contender: Contender) -> str:
    """The first cell of a contender's row: ours is named by its spec and the settings beside it."""
    if contender.kind != "ours":
        return {"none": "uncompressed", "fp16": "the engine's own fp16"}[contender.kind]
    spec, *settings = contender.spec.replace("|", r"\|").split(" ")
    return ", ".join(
        f"`{text}`" for text in [spec, *(text.replace("=", ": ") for text in settings)]
    )


def _speeds(found: Mapping[tuple[str, str], Mapping[str, Any]], contender: Contender | None) -> str:
    """Of one contender at each rate."""
    if contender is None:
        return ""
    return " / ".join(_speed(found, contender, rate) for rate in RATES)


def _speed(
    found: Mapping[tuple[str, str], Mapping[str, Any]], contender: Contender, rate: str
) -> str:
    dense = [
        found[other.name, rate]["median_seconds"]
        for other in CONTENDERS
        if other.engine == contender.engine and other.dense and (other.name, rate) in found
    ]
    row = found.get((contender.name, rate))
    return "-" if row is None else f"{min(dense) / row['median_seconds']:.1f}"


def main() -> None:
    """Draw, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/results/which-compressor.png")
    arguments = parser.parse_args()
    draw(arguments.plot)
    print(table())


if __name__ == "__main__":
    main()
