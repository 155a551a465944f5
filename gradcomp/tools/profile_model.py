"""Where a configuration's step would go on the shapes of a model, and what to change."""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradcomp import _core
from gradcomp.config.schema import Config
from gradcomp.errors import GradcompError
from gradcomp.runtime.loopback import Loopback
from gradcomp.stopwatch import Phase
from gradcomp.tools.simulate import synthetic_gradients

__all__ = ["ModelProfile", "RuleProfile", "advice", "profile_model", "wire_bytes"]

COMPUTED: Sequence[Phase] = ("compensate", "encode", "decode", "copy")
"""The phases that a machine without a network can measure."""

FIRST_STEP = 1_000_000
"""After all warm-ups."""

LARGE_SHARE = 0.4
"""Of a step: what takes more is worth a remark."""


@dataclass(frozen=True)
class RuleProfile:
    """The tensors that one rule takes.

    Attributes:
        rule: what chose the spec: a key path or a default rule.
        spec: the canonical spec.
        tensors: how many there are.
        rounds: exchanges that they share in a step.
        seconds: that one rank computes in a step.
    """

    rule: str
    spec: str
    tensors: int
    rounds: int
    seconds: float


@dataclass(frozen=True)
class ModelProfile:
    """One rank's step: medians of times, means of numbers.

    Attributes:
        workers: ranks that average together.
        steps: how many were measured.
        threads: of this process.
        bits_per_second: of each rank's link, as assumed.
        phases: seconds that are computed, by phase.
        wire_seconds: that the bytes sent would take on the link, without any latency.
        dense_seconds: that uncompressed gradients would take there.
        sent_bytes: what a rank hands to the collectives, by kind of request.
        dense_bytes: of its gradients.
        requests: how many it makes.
        rules: one for each rule that takes a tensor, slowest first.
    """

    workers: int
    steps: int
    threads: int
    bits_per_second: float
    phases: dict[Phase, float]
    wire_seconds: float
    dense_seconds: float
    sent_bytes: dict[str, float]
    dense_bytes: int
    requests: float
    rules: tuple[RuleProfile, ...]

    @property
    def parts(self) -> dict[str, float]:
        """The phases, and the wire."""
        return {str(phase): one for phase, one in self.phases.items()} | {"wire": self.wire_seconds}

    @property
    def computed_seconds(self) -> float:
        """All phases together."""
        return sum(self.phases.values())

    @property
    def seconds(self) -> float:
        """Of the step, if nothing overlaps."""
        return self.computed_seconds + self.wire_seconds


def wire_bytes(sent: Mapping[str, float], workers: int) -> float:
    """What passes a rank's link one way, from the bytes that it hands to collectives.

    A ring all-reduce of P bytes sends 2 (n-1)/n P, an all-gather receives (n-1) P from ranks that
    send as many, an all-to-all keeps what is for itself. Exchanges inside a node pass no link.
    """
    others = workers - 1
    factors = {
        "allreduce": 2 * others / workers,
        "allgather": others,
        "alltoall": others / workers,
        "broadcast": 1.0 if others else 0.0,
    }
    return sum(factors.get(kind, 0.0) * nbytes for kind, nbytes in sent.items())


def profile_model(
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    workers: int,
    steps: int,
    bits_per_second: float,
    first_step: int = FIRST_STEP,
    tick: Callable[[], None] = lambda: None,
) -> ModelProfile:
    """Average synthetic gradients of ``shapes`` over ``workers`` ranks, and measure the first rank.

    A step that is not measured comes before the others, and allocates memory. Times are the sums of
    each bucket's medians. No bucket has tensors of two rules, as it may in a job.

    Args:
        first_step: in which step and epoch of training that is.
        tick: is called after each bucket of each step.

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
    if not 0 < bits_per_second < math.inf:
        raise GradcompError(f"the bandwidth is {bits_per_second:g} bit/s; it must be above 0")
    loop = Loopback(config, workers)
    loop.begin_at(first_step, shapes)
    of_rules: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        of_rules.setdefault(config.resolve(name, shape).rule, {})[name] = shape
    first = loop.ranks[0]
    buckets = [one for some in of_rules.values() for one in first.buckets(first.resolve_all(some))]
    totals = []
    for step in range(steps + 1):
        profile = loop.stats[0].start_profile()
        rng = np.random.default_rng([config.seed, step])
        for bucket in buckets:
            # No more of the model need be in memory at once.
            grads = {name: synthetic_gradients(rng, shapes[name], workers) for name in bucket}
            loop.step({name: grads[name] for name in reversed(bucket)})
            tick()
        totals.append(profile.total)
    del totals[0]
    sent: Counter[str] = sum((total.sent_bytes for total in totals), Counter())
    sent_bytes = {kind: nbytes / steps for kind, nbytes in sent.items()}
    dense_bytes = 4 * sum(math.prod(shape) for shape in shapes.values())
    speed = bits_per_second / 8
    seconds = {
        first: {
            phase: statistics.median(total.tensors[first].get(phase, 0.0) for total in totals)
            for phase in COMPUTED
        }
        for first, *_ in buckets
    }
    return ModelProfile(
        workers=workers,
        steps=steps,
        threads=_core.thread_count(),
        bits_per_second=bits_per_second,
        phases={phase: sum(one[phase] for one in seconds.values()) for phase in COMPUTED},
        wire_seconds=wire_bytes(sent_bytes, workers) / speed,
        dense_seconds=wire_bytes({"allreduce": dense_bytes}, workers) / speed,
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
    """Each rule's share.

    Args:
        seconds: of each bucket's phases, by its first tensor.
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


def advice(result: ModelProfile) -> list[str]:
    """What to change, in sentences; the most important first."""
    return [*_worth_it(result), *(text for _, text in sorted(_bounds(result), reverse=True))]


def _worth_it(result: ModelProfile) -> list[str]:
    if result.workers == 1:
        return ["one worker sends nothing: give --workers the size of the job"]
    own, dense = result.seconds, result.dense_seconds
    saved = (dense - result.wire_seconds) * result.bits_per_second
    if saved <= 0:
        return [
            "no fewer bytes pass the link than uncompressed: another spec, or compress.exchange: "
            "sra, whose volume does not grow with the ranks"
        ]
    limit = f"it pays on links below {_rate_text(saved / result.computed_seconds)}"
    uncompressed = f"{1e3 * dense:.1f} ms of no compression"
    if own >= dense:
        return [
            f"slower than the {uncompressed} on this link; {limit}: fp16, or compress.policy: "
            "auto, which measures both"
        ]
    return [f"{dense / own:.1f} times as fast as the {uncompressed} on this link; {limit}"]


def _bounds(result: ModelProfile) -> list[tuple[float, str]]:
    """Remarks about what takes a large share of the step, with the share."""
    remarks = []
    for phase, seconds in result.parts.items():
        share = seconds / result.seconds
        if share >= LARGE_SHARE:
            what = f"{_PHASE_TEXTS[phase]} takes {share:.0%} of the step"
            remarks.append((share, f"{what}: {'; '.join(_remedies(phase, result))}"))
    return remarks


_PHASE_TEXTS = {
    "compensate": "keeping memories",
    "encode": "encoding",
    "decode": "decoding",
    "copy": "copying, with Python,",
    "wire": "the wire",
}


def _remedies(phase: str, result: ModelProfile) -> list[str]:
    """For a phase that takes a large share."""
    slowest = result.rules[0].rule
    gathered = result.sent_bytes.get("allgather", 0.0) > 0.5 * sum(result.sent_bytes.values())
    remedies = []
    cores = len(os.sched_getaffinity(0))
    if phase in ("encode", "decode") and result.threads < cores:
        remedies.append(f"GRADCOMP_THREADS={cores} (now {result.threads})")
    if phase in ("decode", "wire") and gathered and result.workers > 2:
        remedies.append("compress.exchange: sra, in which a rank decodes its own part of all")
    if phase == "compensate":
        remedies.append("the memory residual, which the core applies while it encodes")
    if phase == "encode":
        remedies.append(
            f"a faster codec for {slowest} (gradcomp bench --all; sampled_topk for topk)"
        )
    if phase == "decode":
        remedies.append(f"a spec for {slowest} that decodes faster (gradcomp bench --all)")
    if phase == "wire":
        remedies.append("a spec that sends less")
    if phase == "copy":
        remedies.append(
            f"fewer than the {result.requests:.0f} requests of a step, by a larger "
            "compress.bucket_bytes"
        )
    return remedies


def _rate_text(bits_per_second: float) -> str:
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_second >= size:
            return f"{bits_per_second / size:.3g} {unit}"
    return f"{bits_per_second / 1e3:.3g} kbit/s"
