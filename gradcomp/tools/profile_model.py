"""The time of a step under a configuration on the shapes of a model, by phase and by rule."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradcomp import _core
from gradcomp.config.schema import Config
from gradcomp.errors import GradcompError
from gradcomp.exchange.link import dense_link_bytes
from gradcomp.runtime.loopback import Loopback
from gradcomp.stopwatch import Phase
from gradcomp.tools.step_model import Link, StepTime
from gradcomp.tools.synthetic import LATE_STEP, synthetic_gradients

__all__ = ["ModelProfile", "RuleProfile", "profile_model"]

COMPUTED: Sequence[Phase] = ("compensate", "encode", "decode", "copy")
"""Phases that can be measured without a network."""


@dataclass(frozen=True)
class RuleProfile:
    """Totals over the tensors that one rule takes.

    Attributes:
        rule: the rule: a key path or a default rule.
        spec: the canonical spec.
        tensors: number of tensors.
        rounds: number of their exchanges in a step.
        seconds: time that one rank computes in a step.
    """

    rule: str
    spec: str
    tensors: int
    rounds: int
    seconds: float


@dataclass(frozen=True)
class ModelProfile:
    """One rank's step: medians of times, means of counts.

    Attributes:
        workers: number of ranks that average together.
        steps: number of steps measured.
        threads: threads of this process.
        link: of each rank, assumed; without latency.
        step: its stages are the measured phases and the wire, one after the other.
        uncompressed: the same of uncompressed gradients, which take the wire's time alone.
        sent_bytes: bytes that a rank hands to the collectives, by kind of request.
        dense_bytes: bytes of a rank's gradients.
        requests: number of requests of a rank.
        rules: one for each rule that takes a tensor, slowest first.
    """

    workers: int
    steps: int
    threads: int
    link: Link
    step: StepTime
    uncompressed: StepTime
    sent_bytes: dict[str, float]
    dense_bytes: int
    requests: float
    rules: tuple[RuleProfile, ...]

    @property
    def phases(self) -> dict[Phase, float]:
        """Measured seconds, by phase."""
        return {phase: self.step.stages[phase] for phase in COMPUTED}

    @property
    def computed_seconds(self) -> float:
        """Sum of the measured phases."""
        return sum(self.phases.values())


def profile_model(
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    workers: int,
    steps: int,
    link: Link,
    first_step: int = LATE_STEP,
    tick: Callable[[], None] = lambda: None,
) -> ModelProfile:
    """Average synthetic gradients of ``shapes`` over ``workers`` ranks, and measure the first rank.

    A first step allocates memory and is not measured. Times are sums over buckets of their medians.
    Unlike in a job, no bucket has tensors of two rules.

    Args:
        link: of each rank; its latency is ignored.
        first_step: step and epoch of training before the measurement, for schedules.
        tick: called after each bucket of each step.

    Raises:
        GradcompError: a number is out of its range.
    """
    for name, value, least in (
        ("workers", workers, 1),
        ("steps", steps, 1),
        ("step", first_step, 0),
    ):
        if value < least:
            raise GradcompError(f"{name} is {value}; it must be at least {least}")
    if math.isinf(link.bits_per_second):
        raise GradcompError("the bandwidth is infinite; give the rate of a rank's link")
    loop = Loopback(config, workers)
    loop.begin_at(first_step, shapes)
    of_rules: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        of_rules.setdefault(config.resolve(name, shape).rule, {})[name] = shape
    first = loop.ranks[0]
    buckets = [
        bucket for some in of_rules.values() for bucket in first.buckets(first.resolve_all(some))
    ]
    totals, link_bytes = [], 0.0
    for step in range(steps + 1):
        before, profile = loop.stats[0].link_bytes, loop.stats[0].start_profile()
        rng = np.random.default_rng([config.seed, step])
        for bucket in buckets:
            # Bucket by bucket, to keep only a part of the model in memory.
            grads = {name: synthetic_gradients(rng, shapes[name], workers) for name in bucket}
            loop.step({name: grads[name] for name in reversed(bucket)})
            tick()
        totals.append(profile.total)
        link_bytes += (loop.stats[0].link_bytes - before) / steps if step else 0.0
    del totals[0]
    sent: Counter[str] = sum((total.sent_bytes for total in totals), Counter())
    sent_bytes = {kind: nbytes / steps for kind, nbytes in sent.items()}
    dense_bytes = 4 * sum(math.prod(shape) for shape in shapes.values())
    seconds = {
        first: {
            phase: statistics.median(total.tensors[first].get(phase, 0.0) for total in totals)
            for phase in COMPUTED
        }
        for first, *_ in buckets
    }
    work = {str(phase): sum(phases[phase] for phases in seconds.values()) for phase in COMPUTED}
    return ModelProfile(
        workers=workers,
        steps=steps,
        threads=_core.thread_count(),
        link=link,
        step=StepTime.in_turn(work, link, link_bytes),
        uncompressed=StepTime.in_turn({}, link, dense_link_bytes(dense_bytes, workers)),
        sent_bytes=sent_bytes,
        dense_bytes=dense_bytes,
        requests=sum(total.requests for total in totals) / steps,
        rules=_rules(config, shapes, buckets, seconds),
    )


def _rules(
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    buckets: Sequence[tuple[str, ...]],
    seconds: Mapping[str, Mapping[Phase, float]],
) -> tuple[RuleProfile, ...]:
    """The profile of each rule.

    Args:
        seconds: first tensor of each bucket -> seconds by phase.
    """
    rows: dict[str, RuleProfile] = {}
    for first, *others in buckets:
        choice = config.resolve(first, shapes[first])
        row = rows.get(choice.rule) or RuleProfile(
            choice.rule, choice.schedule.canonical, 0, 0, 0.0
        )
        rows[choice.rule] = replace(
            row,
            tensors=row.tensors + 1 + len(others),
            rounds=row.rounds + 1,
            seconds=row.seconds + sum(seconds[first].values()),
        )
    return tuple(sorted(rows.values(), key=lambda row: -row.seconds))
