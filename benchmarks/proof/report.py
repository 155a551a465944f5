"""The page and the picture of the finished runs."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from gradcomp.tools.plotting import label_points, new_figure
from proof.cells import AUTO, LOCAL_STEPS, SPECS, TASKS, plan
from proof.store import Row
from proof.training import UNCOMPRESSED
from which_compressor import FAMILIES, colour

__all__ = ["Against", "Group", "page", "write"]

_GOAL = 20.0
"""Times fewer bytes."""

_OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
_DPI = 110


class Against(NamedTuple):
    """A spec next to uncompressed training.

    Attributes:
        spec: its name.
        differences: losses beyond those of the same seeds' uncompressed runs; more is worse.
        diverged: runs with a loss that was not finite.
        accuracy: in [0, 1], the mean over the seeds that did not diverge; None without any.
        ratio: times fewer bytes, the mean over the seeds.
        spread: the standard deviation of the uncompressed seeds' losses; None with fewer than two.
    """

    spec: str
    differences: list[float]
    diverged: int
    accuracy: float | None
    ratio: float
    spread: float | None

    @property
    def mean(self) -> float:
        """The mean difference; infinite if any run diverged."""
        return float("inf") if self.diverged else statistics.fmean(self.differences)

    @property
    def level(self) -> bool | None:
        """Whether the mean difference is at most the spread; None with fewer than two seeds."""
        if self.spread is None or len(self.differences) + self.diverged < 2:
            return None
        return self.mean <= self.spread

    @property
    def verdict(self) -> str:
        """Of `level`, as in tables."""
        return {True: "level", False: "**not level**", None: "one seed"}[self.level]


class Group:
    """Runs that differ in nothing but spec and seed.

    Attributes:
        task, optimizer, ranks, steps: as in `Cell`.
        setup: of the task.
    """

    def __init__(self, task: str, optimizer: str, ranks: int, steps: int, rows: list[Row]) -> None:
        self.task, self.optimizer, self.ranks, self.steps = task, optimizer, ranks, steps
        self.setup = TASKS[task]
        self._rows = rows

    @property
    def title(self) -> str:
        """For headings."""
        return f"{self.task}, {_OPTIMIZERS[self.optimizer]}, {self.ranks} ranks, {self.steps} steps"

    @cached_property
    def uncompressed(self) -> list[Row]:
        """By seed."""
        return self._of(UNCOMPRESSED)

    @cached_property
    def losses(self) -> dict[int, float]:
        """Those of uncompressed training by seed."""
        return {row.cell.seed: row.loss for row in self.uncompressed if row.loss is not None}

    @cached_property
    def spread(self) -> float | None:
        """The standard deviation of `losses`; None with fewer than two."""
        return statistics.stdev(self.losses.values()) if len(self.losses) > 1 else None

    @cached_property
    def compared(self) -> list[Against]:
        """All specs that have a seed in common with uncompressed training, in the order of `SPECS`."""
        found = []
        for spec in SPECS:
            rows = [row for row in self._of(spec) if row.cell.seed in self.losses]
            if spec == UNCOMPRESSED or not rows:
                continue
            finite = [(row.loss, row) for row in rows if row.loss is not None]
            accuracies = [row.accuracy for _, row in finite if row.accuracy is not None]
            found.append(
                Against(
                    spec,
                    [loss - self.losses[row.cell.seed] for loss, row in finite],
                    len(rows) - len(finite),
                    statistics.fmean(accuracies) if accuracies else None,
                    statistics.fmean(row.ratio for row in rows),
                    self.spread,
                )
            )
        return found

    def _of(self, spec: str) -> list[Row]:
        rows = [row for row in self._rows if row.cell.spec == spec]
        return sorted(rows, key=lambda row: row.cell.seed)


def groups_of(rows: Iterable[Row]) -> list[Group]:
    """The groups with any comparison, in the order of tasks, steps, ranks and optimizers."""
    found: dict[tuple[str, str, int, int], list[Row]] = {}
    for row in rows:
        found.setdefault(row.cell[:4], []).append(row)
    tasks, optimizers = list(TASKS), list(_OPTIMIZERS)
    groups = [Group(*key, some) for key, some in found.items()]
    groups.sort(
        key=lambda group: (
            tasks.index(group.task),
            group.steps,
            group.ranks,
            optimizers.index(group.optimizer),
        )
    )
    return [group for group in groups if group.compared]


def page(rows: Sequence[Row]) -> str:
    """Markdown."""
    groups = groups_of(rows)
    parts = [
        "# Training on Fashion-MNIST and the King James Bible",
        _filled(
            "[What is compared](../../../benchmarks/README.md#training-on-known-data). These "
            "commands make the runs that are missing, and this page:"
        ),
        "```\n$ python benchmarks/proof run\n$ python benchmarks/proof report\n```",
        _filled(
            "*Level*: the mean difference of losses, paired by seed, is at most the standard "
            "deviation of the uncompressed seeds. Differences above 0 are worse than uncompressed "
            "training."
        ),
        _goal(groups),
        "![Difference to uncompressed training by times fewer bytes](results.png)",
        "## Level or not, at which bytes",
        _filled(
            "Times fewer bytes; in bold, with the difference, where the runs are not level. In "
            "brackets: one seed, without a verdict."
        ),
        _overview(groups),
        "## Specs",
        "\n".join(
            ["| name | spec |", "|---|---|"]
            + [
                f"| {name} | `{_escaped(spec)}`{_exchanged(name)} |"
                for name, spec in SPECS.items()
                if name != UNCOMPRESSED
            ]
        ),
    ]
    task = ""
    for group in groups:
        if group.task != task:
            task = group.task
            parts.append(f"## {task}")
            parts.append(
                _filled(
                    f"{group.setup.title}; {group.setup.batch} samples of a rank in a step, "
                    f"learning rates of {_rates(group)}. Losses of the test are in "
                    f"{'bits per character' if group.setup.bits else 'nats'}."
                )
            )
        parts += [f"### {group.title}", _table(group)]
    parts += ["## Not run", _missing(rows)]
    return "\n\n".join(parts) + "\n"


def _rates(group: Group) -> str:
    return " and ".join(
        f"{rate:g} ({_OPTIMIZERS[name]})" for name, rate in group.setup.rates.items()
    )


def _goal(groups: Sequence[Group]) -> str:
    """Where the preset is level, at how many bytes."""
    preset = [
        (group, against) for group in groups for against in group.compared if against.spec == AUTO
    ]
    judged = [(group, against) for group, against in preset if against.level is not None]
    level = [against for _, against in judged if against.level]
    enough = sum(against.ratio >= _GOAL for against in level)
    text = _filled(
        f"The preset `auto` is level in {len(level)} of {len(judged)} cells, in {enough} of these "
        f"at {_GOAL:g} times fewer bytes or more."
    )
    behind = [
        f"{group.title} ({_signed(against.mean)}, spread {against.spread:.4f})"
        for group, against in judged
        if not against.level
    ]
    if behind:
        text += "\nIt is not level here:\n\n" + "\n".join(f"- {line}" for line in behind)
    fewer = [
        f"{group.title}: {against.ratio:.1f}"
        for group, against in judged
        if against.level and against.ratio < _GOAL
    ]
    if fewer:
        text += f"\n\nLevel, but at fewer than {_GOAL:g} times fewer bytes:\n\n"
        text += "\n".join(f"- {line}" for line in fewer)
    return text


def _missing(rows: Sequence[Row]) -> str:
    """What of the plan has not been run."""
    finished = {row.cell for row in rows}
    left: dict[tuple[Any, ...], int] = {}
    for cell in plan():
        if cell not in finished:
            key = (cell.task, cell.ranks, cell.steps)
            left[key] = left.get(key, 0) + 1
    if not left:
        return f"The plan is complete, with {len(finished)} runs."
    lines = ["| task | ranks | steps | runs |", "|---|---:|---:|---:|"]
    for (task, ranks, steps), number in left.items():
        lines.append(f"| {task} | {ranks} | {steps} | {number} |")
    count = f"{sum(left.values())} runs of the plan; {len(finished)} are finished."
    return count + "\n\n" + "\n".join(lines)


def _overview(groups: Sequence[Group]) -> str:
    used = [
        name
        for name in SPECS
        if any(name == against.spec for group in groups for against in group.compared)
    ]
    lines = ["| | " + " | ".join(used) + " |", "|---|" + "---:|" * len(used)]
    for group in groups:
        of_spec = {against.spec: against for against in group.compared}
        cells = [_brief(of_spec[name]) if name in of_spec else "" for name in used]
        lines.append(f"| {group.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _brief(against: Against) -> str:
    if against.level is None:
        return f"({against.ratio:.1f})"
    if against.level:
        return f"{against.ratio:.1f}"
    return f"**{against.ratio:.1f}, {_signed(against.mean)}**"


def _table(group: Group) -> str:
    """A row for each spec."""
    losses = list(group.losses.values())
    lines = [
        "| | difference, mean | ± | by seed | accuracy | times fewer bytes | |",
        "|---|---:|---:|---|---:|---:|---|",
    ]
    by_seed = " ".join(f"{loss:.4f}" for loss in losses)
    spread = "" if group.spread is None else f"{group.spread:.4f}"
    right = [row.accuracy for row in group.uncompressed if row.accuracy is not None]
    lines.append(
        f"| uncompressed | loss {statistics.fmean(losses):.4f} | {spread} | losses {by_seed} | "
        f"{statistics.fmean(right):.4f} | 1 | |"
    )
    for against in group.compared:
        differences = against.differences
        deviation = f"{statistics.stdev(differences):.4f}" if len(differences) > 1 else ""
        by_seed = " ".join(
            [_signed(value) for value in differences] + ["diverged"] * against.diverged
        )
        accuracy = "" if against.accuracy is None else f"{against.accuracy:.4f}"
        lines.append(
            f"| {against.spec} | {_signed(against.mean)} | {deviation} | {by_seed} | {accuracy} | "
            f"{against.ratio:.1f} | {against.verdict} |"
        )
    return "\n".join(lines)


def _filled(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def _signed(value: float) -> str:
    return "diverged" if value == float("inf") else f"{value:+.4f}"


def _exchanged(name: str) -> str:
    every = LOCAL_STEPS.get(name)
    return f", the changes of the parameters, averaged every {every} steps" if every else ""


def _escaped(spec: str) -> str:
    return spec.replace("|", "\\|")


def draw(rows: Sequence[Row], path: Path) -> None:
    """A panel for each group of at least three specs; differences by times fewer bytes."""
    groups = [group for group in groups_of(rows) if len(group.compared) >= 3 and group.spread]
    if not groups:
        return
    columns = min(2, len(groups))
    lines = -(-len(groups) // columns)
    figure = new_figure(6.5 * columns, 0.6 + 4.5 * lines)
    figure.set_dpi(_DPI)  # labels are placed in pixels
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in panels[len(groups) :]:
        axes.set_axis_off()
    points = [_panel(axes, group) for axes, group in zip(panels, groups, strict=False)]
    from matplotlib.lines import Line2D

    families = [
        Line2D([], [], marker="o", linestyle="", color=code, label=label)
        for label, (code, _) in FAMILIES.items()
    ]
    marks = [
        Line2D([], [], marker="o", linestyle="", color="#888888", label="level"),
        Line2D(
            [],
            [],
            marker="o",
            linestyle="",
            color="#888888",
            markerfacecolor="white",
            label="worse",
        ),
    ]
    figure.legend(handles=families[1:] + marks, loc="outside lower center", ncols=4, frameon=False)
    for axes, some in zip(panels, points, strict=False):
        label_points(axes, some)
    figure.savefig(path, dpi=_DPI)


def _panel(axes: Any, group: Group) -> list[tuple[float, float, str]]:
    assert group.spread is not None
    axes.axhspan(-group.spread, group.spread, color="#eeeeee", zorder=0)
    points = []
    for against in group.compared:
        if against.diverged:
            continue  # has no place on the axis; the table shows it
        code = _colour(against.spec)
        face = code if against.level else "white"
        axes.plot(against.ratio, against.mean, "o", color=code, markerfacecolor=face, zorder=3)
        points.append((against.ratio, against.mean, against.spec))
    axes.set_xscale("log")
    # Linear inside the spread, where verdicts are made; logarithmic for the far ones.
    axes.set_yscale("symlog", linthresh=group.spread)
    axes.set_xlim(1.5, 1000)
    axes.margins(y=0.1)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    unit = "bits per character" if group.setup.bits else "nats"
    axes.set(xlabel="times fewer bytes", ylabel=f"{unit} more than uncompressed")
    axes.set_title(group.title, loc="left", fontweight="bold")
    return points


def _colour(name: str) -> str:
    if name in LOCAL_STEPS:
        return "black"
    return colour("adaptive" if name == AUTO else name)


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write results.md and results.png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(page(rows), encoding="utf-8")
    draw(rows, folder / "results.png")
