"""Known accuracy of specs: comparisons by training, from docs/results."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib.resources import files

from gradcomp.codec.spec import Spec, parse
from gradcomp.tools.synthetic import LATE_STEP

__all__ = ["Comparison", "accuracy_text", "comparisons"]

_HIGHER_IS_BETTER = frozenset({"test accuracy"})


@dataclass(frozen=True)
class Comparison:
    """One run, compared with the uncompressed one: means over seeds, and standard deviations.

    Attributes:
        spec: as in accuracy.csv; parameters that it does not name may differ.
        section: of docs/results/README.md.
        run: its name there.
        measure: "test accuracy", "bits per character" or "test bits".
    """

    spec: str
    section: str
    run: str
    measure: str
    baseline: float
    baseline_spread: float
    result: float
    result_spread: float

    @property
    def level(self) -> bool:
        """Whether the result is not worse by more than both spreads."""
        worse = self.result - self.baseline
        if self.measure in _HIGHER_IS_BETTER:
            worse = -worse
        return worse <= self.baseline_spread + self.result_spread

    @property
    def text(self) -> str:
        """A line for a report."""
        return (
            f"{self.section}: {self.measure} {self.result:.4g} ± {self.result_spread:.2g}, "
            f"uncompressed {self.baseline:.4g} ± {self.baseline_spread:.2g}"
        )


@functools.cache
def _all() -> tuple[Comparison, ...]:
    text = files("gradcomp.tools.advise").joinpath("accuracy.csv").read_text("utf-8")
    return tuple(
        Comparison(spec, section, run, measure, *map(float, numbers))
        for spec, section, run, measure, *numbers in list(csv.reader(text.splitlines()))[1:]
    )


def comparisons(spec: str) -> list[Comparison]:
    """The comparisons of a spec. Warm-ups and variants, which accuracy.csv does not name, may differ."""
    asked = _after_warm_up(spec)
    return [
        comparison
        for comparison in _all()
        if _fits(_after_warm_up(comparison.spec), comparison.spec, asked)
    ]


def _after_warm_up(spec: str) -> Spec:
    return parse(spec).at(LATE_STEP, LATE_STEP)


def _fits(known: Spec, text: str, asked: Spec) -> bool:
    if [stage.name for stage in known.stages] != [stage.name for stage in asked.stages]:
        return False
    return all(
        theirs.params[name] == value
        for ours, theirs in zip(known.stages, asked.stages, strict=True)
        for name, value in ours.params.items()
        if f"{name}=" in text
    )


def accuracy_text(spec: str) -> str:
    """The comparisons in which a spec was level with no compression, and their number."""
    found = comparisons(spec)
    if not found:
        return "-"
    return f"{sum(comparison.level for comparison in found)} of {len(found)}"
