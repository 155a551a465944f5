"""Candidates for a job, ranked by their predicted steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gradcomp.codec.codec import get_codec
from gradcomp.codec.spec import Spec, parse
from gradcomp.exchange.select import EXCHANGES, FLAT_EXCHANGES, exchange_pattern, exchange_refusal
from gradcomp.tools.advise.accuracy import accuracy_text
from gradcomp.tools.advise.cache import SpeedCache
from gradcomp.tools.advise.calibrate import measure_speeds
from gradcomp.tools.advise.copies import seconds_of_copy
from gradcomp.tools.advise.predict import UNCOMPRESSED, Job, predict
from gradcomp.tools.bench import relative_error
from gradcomp.tools.step_model import StepTime

__all__ = [
    "SPECS",
    "Advice",
    "Candidate",
    "advise",
    "calibrate",
    "candidates",
    "copy_byte",
    "to_calibrate",
]

SPECS = (
    UNCOMPRESSED,
    "fp16",
    "residual|int8",
    "residual|int4",
    "residual|sign",
    "residual|topk(ratio=0.01)",
    "dgc(ratio=0.001)",
    "powersgd(rank=4)",
    "residual|adaptive(rate=0.5)",
)
"""Specs that are compared without a choice of the user's."""

_ROUNDING = 1e-3
"""vNMSE below which an error counts as rounding."""

_NUMEL = 1 << 16


@dataclass(frozen=True)
class Candidate:
    """A spec with an exchange.

    Attributes:
        spec: as it was given.
        exchange: value of ``compress.exchange``.
        pattern: see `gradcomp.exchange.select.exchange_pattern`.
    """

    spec: str
    exchange: str
    pattern: str

    @property
    def compresses(self) -> bool:
        """Whether it is more than the engine alone."""
        return self.pattern != "dense"


@dataclass(frozen=True)
class Advice:
    """A candidate for a job.

    Attributes:
        speedup: seconds of the uncompressed step over those of this one.
        error: see `error_class`.
        accuracy: see `gradcomp.tools.advise.accuracy.accuracy_text`.
    """

    candidate: Candidate
    prediction: StepTime
    speedup: float
    error: str
    accuracy: str


def candidates(specs: Sequence[str], ranks: int, ranks_per_node: int) -> list[Candidate]:
    """Each spec with each exchange that it can have; the engine alone is always among them.

    Raises:
        SpecError: a spec is wrong.
    """
    found: dict[tuple[str, str], Candidate] = {}
    two_level = 1 < ranks_per_node < ranks
    for text in dict.fromkeys([UNCOMPRESSED, *specs]):
        spec = parse(text)
        exchanges = EXCHANGES if two_level else FLAT_EXCHANGES
        for exchange in sorted(exchanges, key="auto".__eq__):  # the last: it names no pattern
            if exchange_refusal(spec, exchange) is not None:
                continue
            nodes = exchange.startswith("two_level")
            pattern = exchange_pattern(spec, exchange, ranks // ranks_per_node if nodes else ranks)
            # "two_level" stands for one of the others, under a name that lasts.
            key = spec.canonical, pattern
            known = found.get(key)
            if known is None or known.exchange == "two_level":
                named = exchange if exchange in _names(spec, pattern) else "auto"
                found[key] = Candidate(text, named, pattern)
    return list(found.values())


def _names(spec: Spec, pattern: str) -> Iterator[str]:
    """Exchanges that name a pattern."""
    yield pattern
    if pattern.startswith("two_level"):
        yield "two_level"


def to_calibrate(cache: SpeedCache, found: Sequence[Candidate]) -> list[Candidate]:
    """The candidates without known speeds on this machine."""
    return [
        candidate
        for candidate in found
        if candidate.compresses and cache.speeds(candidate.spec, candidate.exchange) is None
    ]


def calibrate(
    cache: SpeedCache, unknown: Sequence[Candidate], tick: Callable[[], None] = lambda: None
) -> None:
    """Measure speeds and keep them.

    Args:
        tick: called `gradcomp.tools.advise.calibrate.ticks` times for each of ``unknown``.
    """
    pairs = [(candidate.spec, candidate.exchange) for candidate in unknown]
    for (spec, exchange), speeds in zip(pairs, measure_speeds(pairs, tick), strict=True):
        cache.keep_speeds(spec, exchange, speeds)


def copy_byte(cache: SpeedCache, at_once: int) -> float:
    """Seconds of a copied byte on this machine, measured if they are not known.

    Args:
        at_once: as in `gradcomp.tools.advise.copies.seconds_of_copy`.
    """
    seconds = cache.copy_byte(at_once)
    if seconds is None:
        seconds = seconds_of_copy(at_once)
        cache.keep_copy_byte(at_once, seconds)
    return seconds


def advise(job: Job, found: Sequence[Candidate], cache: SpeedCache) -> list[Advice]:
    """All candidates, the fastest step first; of equal ones the simplest.

    Every speed must be in the cache; see `calibrate`.
    """
    alone = predict(job, UNCOMPRESSED)
    result = []
    for candidate in found:
        speeds = cache.speeds(candidate.spec, candidate.exchange) if candidate.compresses else None
        prediction = predict(job, candidate.spec, candidate.exchange, speeds)
        speedup = prediction.times_as_fast_as(alone)
        error = error_class(parse(candidate.spec))
        result.append(Advice(candidate, prediction, speedup, error, accuracy_text(candidate.spec)))
    return sorted(
        result, key=lambda advice: (advice.prediction.seconds, advice.candidate.compresses)
    )


def error_class(spec: Spec) -> str:
    """The kind of a spec's error.

    Returns:
        "none"; "rounding", with a vNMSE below a thousandth; "later", if a memory sends the rest in
        later steps; else "lost".
    """
    if spec.algorithm is not None:
        return "later" if spec.stateful else "lost"
    codec = get_codec(spec.first_codec)
    if codec.name in ("identity", "lossless"):
        return "none"
    if spec.memory is not None:
        return "later"
    x = np.random.default_rng(0).standard_normal(_NUMEL, np.float32)
    return "rounding" if relative_error(spec.canonical, x) < _ROUNDING else "lost"
