"""The consensus experiment: bits that ranks send until they agree on the average of matrices.

After Vogels, Karimireddy, Jaggi: "Practical Low-Rank Communication
Compression in Decentralized Deep Learning" (NeurIPS 2020): gossip without gradients.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.errors import GradcompError
from gradcomp.gossip import Gossip, Topology, make_gossip, run_gossip
from gradcomp.tools.plotting import new_figure

__all__ = [
    "DATA",
    "DEFAULTS",
    "GAMMAS",
    "Point",
    "Run",
    "best",
    "make_data",
    "plot",
    "sweep",
    "write_csv",
]

DEFAULTS = (
    *("gossip", "powergossip:1", "choco:topk(ratio=0.01)", "choco:sign"),
    *("deepsqueeze:topk(ratio=0.01)", "moniqua:2"),
)
"""Algorithms measured by default."""

GAMMAS = (0.03, 0.1, 0.3, 1.0)
"""Step sizes tried by default."""

_POINTS = 50
"""Points of a run, about."""


@dataclass(frozen=True)
class Point:
    """The state of a run after some rounds.

    Attributes:
        step: number of rounds.
        bits: bits sent so far, the mean over the ranks.
        messages: messages sent so far, the mean over the ranks.
        distance: norm of all ranks' differences to the average, relative to its initial value.
    """

    step: int
    bits: float
    messages: float
    distance: float


@dataclass(frozen=True)
class Run:
    """One algorithm with one step size; a run ends early where it diverges."""

    algorithm: str
    gamma: float
    points: tuple[Point, ...]

    @property
    def final(self) -> Point:
        """The last point."""
        return self.points[-1]

    def bits_to(self, distance: float) -> float | None:
        """Bits sent by a rank when the distance is first at most ``distance``; None if it never is."""
        return next((point.bits for point in self.points if point.distance <= distance), None)


def _normal(rng: np.random.Generator, size: int) -> FloatArray:
    return rng.standard_normal((size, size), np.float32)


def _sparse(rng: np.random.Generator, size: int) -> FloatArray:
    chosen = rng.random((size, size)) < 0.01
    return np.where(chosen, _normal(rng, size), np.float32(0)).astype(np.float32)


def _low_rank(rng: np.random.Generator, size: int) -> FloatArray:
    left, right = (rng.standard_normal((size, 2), np.float32) for _ in range(2))
    return left @ right.T


DATA: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "random": _normal,
    "sparse": _sparse,
    "lowrank": _low_rank,
}
"""Initial matrices: normal values; 1% of them, the rest 0; products of rank 2."""


def make_data(kind: str, ranks: int, size: int, seed: int) -> list[FloatArray]:
    """One flat square matrix for each rank.

    Raises:
        GradcompError: ``kind`` is not in `DATA`, or ``size`` is below 2.
    """
    if kind not in DATA:
        raise GradcompError(f"--data is {kind!r}; it must be one of {', '.join(DATA)}")
    if size < 2:
        raise GradcompError(f"--size is {size}; it must be at least 2, such as 100")
    return [
        DATA[kind](np.random.default_rng([seed, rank]), size).reshape(-1) for rank in range(ranks)
    ]


def sweep(
    algorithms: Sequence[str],
    gammas: Sequence[float],
    data: Sequence[FloatArray],
    topology: Topology,
    steps: int,
) -> Iterator[Run]:
    """Run every algorithm with every step size, all from the same values.

    Args:
        algorithms: "gossip", "powergossip:RANK", "choco:SPEC", "quantized_push_sum:SPEC",
            "deepsqueeze:SPEC" with the spec of a codec, "moniqua:BITS". Moniqua's theta is the
            largest difference at the beginning.

    Raises:
        GradcompError: an algorithm is unknown, does not take the topology, or a number is out of
            its range.
    """
    if steps < 1:
        raise GradcompError(f"--steps is {steps}; it must be at least 1")
    for name in algorithms:
        for gamma in gammas:
            try:
                ranks = [
                    _make(name, gamma, topology, rank, data) for rank in range(topology.world_size)
                ]
            except ValueError as error:  # includes GradcompError
                raise GradcompError(f"{name}, gamma {gamma}: {error}") from error
            yield Run(name, gamma, tuple(_points(ranks, data, steps)))


def _make(
    name: str, gamma: float, topology: Topology, rank: int, data: Sequence[FloatArray]
) -> Gossip:
    size = int(np.sqrt(data[0].size))
    kind, _, option = name.partition(":")
    options: dict[str, object] = {"gamma": gamma}
    if kind in ("choco", "deepsqueeze", "quantized_push_sum"):
        options["codec"] = option or "topk(ratio=0.01)"
    elif kind == "powergossip":
        options["compression_rank"] = _number(name, option or "1")
    elif kind == "moniqua":
        spread = np.max(data, axis=0) - np.min(data, axis=0)
        options |= {"bits": _number(name, option or "2"), "theta": float(spread.max()) or 1.0}
    elif kind != "gossip" or option:
        raise GradcompError(
            f"no algorithm is called '{name}'; take gossip, powergossip:RANK, choco:SPEC, "
            "quantized_push_sum:SPEC, deepsqueeze:SPEC or moniqua:BITS"
        )
    return make_gossip(kind, topology, rank, {"x": (size, size)}, **options)


def _number(name: str, text: str) -> int:
    if not text.isdigit():
        raise GradcompError(f"'{name}' must have a whole number after the colon")
    return int(text)


def _points(ranks: Sequence[Gossip], data: Sequence[FloatArray], steps: int) -> Iterator[Point]:
    values = [x.copy() for x in data]
    first = _distance(values)
    yield Point(0, 0.0, 0.0, 1.0)
    every = max(1, steps // _POINTS)
    with np.errstate(all="ignore"):  # runs may diverge
        for step in range(1, steps + 1):
            run_gossip([algorithm.round(x) for algorithm, x in zip(ranks, values, strict=True)])
            if step % every and step < steps:
                continue
            distance = _distance(values) / first if first else 0.0
            bits = sum(algorithm.traffic.bits for algorithm in ranks) / len(ranks)
            messages = sum(algorithm.traffic.messages for algorithm in ranks) / len(ranks)
            yield Point(step, bits, messages, distance)
            if not distance < 1e6:
                return


def _distance(values: Sequence[FloatArray]) -> float:
    stacked = np.array(values, np.float64)
    return float(np.linalg.norm(stacked - stacked.mean(0)))


def best(runs: Sequence[Run]) -> list[Run]:
    """For each algorithm, the run with the smallest distance at its end."""
    found: dict[str, Run] = {}
    for run in runs:
        known = found.get(run.algorithm)
        if known is None or not known.final.distance <= run.final.distance:
            found[run.algorithm] = run
    return list(found.values())


def write_csv(runs: Sequence[Run], path: Path) -> None:
    """Write all points of all runs, one a line."""
    columns = ["algorithm", "gamma", *(field.name for field in fields(Point))]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for run in runs:
            for point in run.points:
                row = {"algorithm": run.algorithm, "gamma": run.gamma}
                writer.writerow(row | asdict(point))


def plot(runs: Sequence[Run], title: str, path: Path) -> None:
    """Draw the best runs' distance against bits, and all runs' last distance against step size.

    Raises:
        GradcompError: matplotlib is not installed.
    """
    figure = new_figure(11, 4.5)
    left, right = figure.subplots(1, 2)
    for index, run in enumerate(best(runs)):
        color = f"C{index}"
        label = f"{run.algorithm}, gamma {run.gamma:g}"
        points = [point for point in run.points if point.bits > 0]
        distances = [max(point.distance, 1e-9) for point in points]
        left.plot([point.bits for point in points], distances, color=color, label=label)
        tried = [other for other in runs if other.algorithm == run.algorithm]
        ends = [min(max(other.final.distance, 1e-9), 1e3) for other in tried]
        right.plot([other.gamma for other in tried], ends, "o-", color=color, markersize=3)
    left.set(xlabel="bits sent by a rank", ylabel="consensus distance", title=title)
    right.set(xlabel="step size gamma", ylabel="distance at the end", title="step sizes")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log")
        axes.grid(True, color="#dddddd", linewidth=0.6)
    left.legend(fontsize=8)
    figure.savefig(path, dpi=110, format="png")
