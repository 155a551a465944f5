"""Bytes, error and time of a step under a configuration, on the shapes of a model."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp.codec.arrays import FloatArray
from gradcomp.config.schema import Config
from gradcomp.errors import GradcompError
from gradcomp.exchange.link import costs_more, dense_link_bytes
from gradcomp.exchange.patterns.dense import Dense
from gradcomp.exchange.patterns.dense_momentum import DenseMomentum
from gradcomp.exchange.select import exchange_choice, link_remedy
from gradcomp.runtime.loopback import Loopback
from gradcomp.tools.synthetic import LATE_STEP, synthetic_gradients

__all__ = ["STEPS", "ModelRun", "RuleBytes", "StepBytes", "link_warnings", "model_run"]

STEPS = 2
"""Steps counted by default: some specs send different messages in even and odd steps."""

MAX_STEPS = 1_000_000


@dataclass(frozen=True)
class StepBytes:
    """Bytes of a step, after all warm-ups; means over the steps.

    With rounds of outer steps, bytes of an inner step.

    Attributes:
        tensors: number of tensors.
        numel: number of their elements.
        dense_tensors: number of tensors that travel uncompressed.
        compressed_numel: number of elements of the other tensors.
        compressed_bytes: bytes of these tensors, which are part of `sent_bytes`.
        sent_bytes: bytes that one rank hands to the collectives, headers included; the mean over
            ranks.
        link_bytes: bytes that pass the link of a rank, the one with most. `gradcomp.exchange.link`
            has the formulas.
        dense_link_bytes: bytes that pass it in a ring all-reduce of uncompressed gradients, in each
            step.
    """

    tensors: int
    numel: int
    dense_tensors: int
    compressed_numel: int
    compressed_bytes: float
    sent_bytes: float
    link_bytes: float
    dense_link_bytes: float

    @classmethod
    def total(cls, parts: Sequence[StepBytes]) -> StepBytes:
        """The sum of ``parts``."""
        names = [field.name for field in fields(StepBytes)]
        return StepBytes(**{name: sum(getattr(part, name) for part in parts) for name in names})

    @property
    def dense_bytes(self) -> int:
        """Bytes of one rank's gradients."""
        return 4 * self.numel

    @property
    def ratio(self) -> float:
        """`dense_bytes` / `sent_bytes`; it does not depend on the number of ranks."""
        return self.dense_bytes / self.sent_bytes

    @property
    def link_ratio(self) -> float:
        """`dense_link_bytes` / `link_bytes`: below 1, more pass it than uncompressed.

        1 on one rank.
        """
        return self.dense_link_bytes / self.link_bytes if self.link_bytes else 1.0

    @property
    def bits_per_element(self) -> float | None:
        """Bits for each element of the compressed tensors; None without any."""
        return 8 * self.compressed_bytes / self.compressed_numel if self.compressed_numel else None

    def as_dict(self) -> dict[str, Any]:
        """Attributes and properties."""
        return {
            **asdict(self),
            "dense_bytes": self.dense_bytes,
            "ratio": self.ratio,
            "link_ratio": self.link_ratio,
            "bits_per_element": self.bits_per_element,
        }


@dataclass(frozen=True)
class RuleBytes(StepBytes):
    """Bytes of the tensors that one rule takes.

    Attributes:
        rule: the rule: a key path or a default rule.
        spec: the canonical spec.
        exchange: the pattern of the spec with this number of ranks.
        exchange_reason: why `auto` takes it; empty if there was no choice.
    """

    rule: str
    spec: str
    exchange: str
    exchange_reason: str


@dataclass(frozen=True)
class ModelRun:
    """Some steps of a whole model.

    Attributes:
        workers: number of ranks that average together.
        steps: number of steps, each a round if there are outer steps.
        rules: one for each rule that takes a tensor, in the order of the model.
        vnmse: ||average - exact average||^2 / ||exact average||^2 over all tensors; the mean over
            the steps.
        node_bytes: bytes that one rank hands over inside its node in a step, with ``two_level``;
            not part of ``sent_bytes``; the mean over ranks and steps.
        seconds_per_step: time of compression and averaging, all ranks one after the other.
    """

    workers: int
    steps: int
    rules: tuple[RuleBytes, ...]
    vnmse: float
    node_bytes: float
    seconds_per_step: float

    @property
    def total(self) -> StepBytes:
        """The bytes of all rules."""
        return StepBytes.total(self.rules)

    def as_dict(self) -> dict[str, Any]:
        """The attributes, and those of `total`."""
        rules = [rule.as_dict() for rule in self.rules]
        return {**asdict(self), **self.total.as_dict(), "rules": rules}


def _mean(grads: Sequence[FloatArray]) -> npt.NDArray[np.float64]:
    """The mean in float64; `numpy.mean` would copy all gradients first."""
    total = grads[0].astype(np.float64)
    for grad in grads[1:]:
        total += grad
    total /= len(grads)
    return total


def model_run(
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    workers: int,
    steps: int = STEPS,
    every: int = 1,
    tick: Callable[[], None] = lambda: None,
) -> ModelRun:
    """Average ``steps`` gradients of ``shapes`` over ``workers`` ranks, after all warm-ups.

    Each rank's gradient is a standard normal tensor that all ranks share plus a tensor that no other has,
    both drawn for each step from ``config.seed``.

    Args:
        every: number of inner steps in each round: bytes and time are those of an inner step.
        tick: called after each tensor of each step.

    Raises:
        GradcompError: ``workers`` or ``steps`` is below 1, ``steps`` is above `MAX_STEPS`, or the
            gradients and residuals of all ranks do not fit into this machine's memory.
    """
    for name, value in (("workers", workers), ("steps", steps)):
        if value < 1:
            raise GradcompError(f"{name} is {value}; it must be at least 1")
    if steps > MAX_STEPS:
        raise GradcompError(f"steps is {steps}; it must be at most {MAX_STEPS}")
    _check_memory(config, shapes, workers)
    members: dict[str, list[str]] = {}  # rule -> names
    for name, shape in shapes.items():
        members.setdefault(config.resolve(name, shape).rule, []).append(name)
    # One loopback for each rule, as statistics are per loopback.
    loops = {rule: Loopback(config, workers) for rule in members}
    for rule, names in members.items():
        loops[rule].begin_at(LATE_STEP, names)

    vnmse = seconds = 0.0
    for step in range(steps):
        rng = np.random.default_rng([config.seed, step])
        error = norm = 0.0
        for rule, names in members.items():
            # Bucket by bucket, as no more of the model need be in memory at once.
            first = loops[rule].ranks[0]
            buckets = first.buckets(first.resolve_all({name: shapes[name] for name in names}))
            for bucket in buckets:
                grads = {name: synthetic_gradients(rng, shapes[name], workers) for name in bucket}
                began = time.perf_counter()
                averages = loops[rule].step({name: grads[name] for name in reversed(bucket)})
                seconds += time.perf_counter() - began
                for name in bucket:
                    exact = _mean(grads[name])
                    error += float(np.sum((averages[name][0] - exact) ** 2))
                    norm += float(np.sum(exact**2))
                    tick()
        vnmse += error / norm / steps

    inner_steps = steps * every
    stats = [stats_of_rank for loop in loops.values() for stats_of_rank in loop.stats]
    return ModelRun(
        workers=workers,
        steps=steps,
        rules=tuple(
            _rule_bytes(config, {name: shapes[name] for name in names}, loops[rule], steps, every)
            for rule, names in members.items()
        ),
        vnmse=vnmse,
        node_bytes=sum(stats_of_rank.node_bytes for stats_of_rank in stats)
        / (workers * inner_steps),
        seconds_per_step=seconds / inner_steps,
    )


def _rule_bytes(
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    loop: Loopback,
    steps: int,
    every: int,
) -> RuleBytes:
    """The bytes of the tensors of one rule, which ``loop`` has averaged."""
    rank, workers = loop.ranks[0], len(loop.ranks)
    dense = {
        name
        for name, tensor in rank.resolve_all(shapes).items()
        if isinstance(tensor.aggregator, Dense | DenseMomentum)
    }
    numel, dense_numel = _numel(shapes.values()), _numel(shapes[name] for name in dense)
    sent = sum(stats.total_bytes for stats in loop.stats) / (workers * steps)
    rule = config.resolve(*next(iter(shapes.items())))
    phase = rule.schedule.at(LATE_STEP, LATE_STEP)
    exchange = phase.exchange or rule.exchange
    choice = exchange_choice(phase.use, exchange, rank.resolver.ranks_of(exchange), rule.averaging)
    return RuleBytes(
        tensors=len(shapes),
        numel=numel,
        dense_tensors=len(dense),
        compressed_numel=numel - dense_numel,
        compressed_bytes=(sent - 4 * dense_numel) / every,
        sent_bytes=sent / every,
        link_bytes=max(stats.link_bytes for stats in loop.stats) / (steps * every),
        dense_link_bytes=dense_link_bytes(4 * numel, workers),
        rule=rule.rule,
        spec=phase.use.canonical,
        exchange=choice.pattern,
        exchange_reason=choice.reason,
    )


def link_warnings(config: Config, run: ModelRun) -> list[str]:
    """A sentence on each rule by which more bytes pass a rank's link than without compression."""
    rules = {rule.rule: rule for rule in config.compress.resolutions}
    warnings = []
    for rule in run.rules:
        if costs_more(rule.link_bytes, rule.dense_link_bytes):
            resolution = rules[rule.rule]
            choices = [
                (phase.use, phase.exchange or resolution.exchange)
                for phase in resolution.schedule.phases
            ]
            warnings.append(
                f"{rule.rule}: {1 / rule.link_ratio:.1f} times as many bytes pass a rank's link as "
                f"uncompressed with {run.workers} ranks; use {link_remedy(choices, run.workers)}"
            )
    return warnings


def _numel(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes))


def _check_memory(config: Config, shapes: Mapping[str, tuple[int, ...]], workers: int) -> None:
    """Raise GradcompError if the ranks need more memory than this machine has."""
    total = 4 * _numel(shapes.values())
    largest = 4 * max(map(math.prod, shapes.values()))
    bucket = max(largest, min(config.compress.bucket_bytes, total))
    # A rank has a gradient and an average of a bucket at a time, and state of all tensors.
    each = 2 * bucket + (total if config.stateful else 0)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if workers * each > memory:
        raise GradcompError(
            f"workers is {workers}, and each needs about {each / 2**20:.0f} MiB; at most "
            f"{memory // each} fit into this machine's memory: give fewer, or a smaller model"
        )
