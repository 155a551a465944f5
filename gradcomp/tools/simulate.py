"""Bytes, error and time of a configuration on the shapes of a model, with synthetic gradients."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gradcomp.config.schema import Config
from gradcomp.config.spec_schedule import Resolution
from gradcomp.errors import GradcompError
from gradcomp.exchange.automatic import Choice
from gradcomp.exchange.link import costs_more, dense_link_bytes
from gradcomp.exchange.select import exchange_choice, link_remedy
from gradcomp.runtime.loopback import Loopback
from gradcomp.runtime.pipeline import Pipeline
from gradcomp.tools.synthetic import synthetic_gradients

__all__ = ["RuleTotals", "SimulationResult", "link_warnings", "simulate"]


MAX_STEPS = 1_000_000


@dataclass(frozen=True)
class RuleTotals:
    """Totals over the tensors that one rule takes.

    Attributes:
        rule: the rule: a key path or a default rule.
        spec: the canonical spec.
        exchange: the pattern of the rule's first spec, with so many ranks.
        exchange_reason: why `auto` takes it; empty if there was no choice.
        tensors: number of tensors.
        numel: number of their elements.
        dense_bytes: bytes of one rank's gradients.
        sent_bytes: bytes that one rank hands to the collectives in a step, headers included; the
            mean over ranks and steps.
        ratio: dense_bytes / sent_bytes; it does not depend on the number of ranks.
        link_bytes: bytes that pass the link of a rank, the one with most, in a step; the mean over
            the steps. `gradcomp.exchange.link` has the formulas.
        dense_link_bytes: bytes that pass it in a ring all-reduce of uncompressed gradients.
        link_ratio: dense_link_bytes / link_bytes: below 1, more pass it than uncompressed; 1 on one
            rank.
    """

    rule: str
    spec: str
    exchange: str
    exchange_reason: str
    tensors: int
    numel: int
    dense_bytes: int
    sent_bytes: float
    ratio: float
    link_bytes: float
    dense_link_bytes: float
    link_ratio: float

    def over(self, every: int) -> RuleTotals:
        """The same per inner step of a round of ``every`` local steps."""
        return replace(
            self,
            sent_bytes=self.sent_bytes / every,
            ratio=self.ratio * every,
            link_bytes=self.link_bytes / every,
            link_ratio=self.link_ratio * every,
        )


@dataclass(frozen=True)
class SimulationResult:
    """Totals over a whole model.

    Attributes:
        groups: one for each rule that takes a tensor, in the order of the model.
        dense_bytes, sent_bytes, ratio, link_bytes, dense_link_bytes, link_ratio: as in `RuleTotals`,
            over all groups.
        vnmse: ||average - exact average||^2 / ||exact average||^2 over all tensors; the mean over
            the steps.
        node_bytes: bytes that one rank hands over inside its node in a step, with ``two_level``;
            not part of ``sent_bytes``; the mean over ranks and steps.
        seconds_per_step: time of compression and averaging, all ranks one after the other.
    """

    workers: int
    steps: int
    groups: tuple[RuleTotals, ...]
    dense_bytes: int
    sent_bytes: float
    ratio: float
    link_bytes: float
    dense_link_bytes: float
    link_ratio: float
    vnmse: float
    node_bytes: float
    seconds_per_step: float

    def over(self, every: int) -> SimulationResult:
        """The same per inner step of rounds of ``every`` local steps; see docs/outer.md."""
        return replace(
            self,
            groups=tuple(group.over(every) for group in self.groups),
            sent_bytes=self.sent_bytes / every,
            ratio=self.ratio * every,
            link_bytes=self.link_bytes / every,
            link_ratio=self.link_ratio * every,
            node_bytes=self.node_bytes / every,
            seconds_per_step=self.seconds_per_step / every,
        )


def simulate(
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    workers: int,
    steps: int = 3,
    tick: Callable[[], None] = lambda: None,
) -> SimulationResult:
    """Average ``steps`` gradients of ``shapes`` over ``workers`` ranks under ``config``.

    Each rank's gradient is a standard normal tensor that all ranks share plus one of its own, both
    drawn anew in each step from ``config.seed``. ``tick`` is called after each tensor of each step.

    Raises:
        GradcompError: ``workers`` or ``steps`` is below 1, ``steps`` is above `MAX_STEPS`, or the
            gradients and residuals of so many ranks do not fit into this machine's memory.
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
                    exact = np.mean(grads[name], axis=0, dtype=np.float64)
                    error += float(np.sum((averages[name][0] - exact) ** 2))
                    norm += float(np.sum(exact**2))
                    tick()
        vnmse += error / norm / steps

    groups = []
    for rule, names in members.items():
        numel = sum(math.prod(shapes[name]) for name in names)
        sent = sum(stats.bytes_per_step for stats in loops[rule].stats) / workers
        link = max(stats.link_bytes for stats in loops[rule].stats) / steps
        dense_link = dense_link_bytes(4 * numel, workers)
        choice = _choice(config.resolve(names[0], shapes[names[0]]), loops[rule].ranks[0])
        groups.append(
            RuleTotals(
                rule=rule,
                spec=config.spec_for(names[0], shapes[names[0]]).canonical,
                exchange=choice.pattern,
                exchange_reason=choice.reason,
                tensors=len(names),
                numel=numel,
                dense_bytes=4 * numel,
                sent_bytes=sent,
                ratio=4 * numel / sent,
                link_bytes=link,
                dense_link_bytes=dense_link,
                link_ratio=dense_link / link if link else 1.0,
            )
        )
    dense = sum(group.dense_bytes for group in groups)
    sent = sum(group.sent_bytes for group in groups)
    link = sum(group.link_bytes for group in groups)
    dense_link = dense_link_bytes(dense, workers)
    return SimulationResult(
        workers=workers,
        steps=steps,
        groups=tuple(groups),
        dense_bytes=dense,
        sent_bytes=sent,
        ratio=dense / sent,
        link_bytes=link,
        dense_link_bytes=dense_link,
        link_ratio=dense_link / link if link else 1.0,
        vnmse=vnmse,
        node_bytes=sum(one.node_bytes for loop in loops.values() for one in loop.stats)
        / (workers * steps),
        seconds_per_step=seconds / steps,
    )


def _choice(rule: Resolution, rank: Pipeline) -> Choice:
    """The exchange of a rule's first spec."""
    phase = rule.schedule.at(0, 0)
    exchange = phase.exchange or rule.exchange
    return exchange_choice(phase.use, exchange, rank.resolver.ranks_of(exchange), rule.averaging)


def link_warnings(config: Config, result: SimulationResult) -> list[str]:
    """A sentence on each rule by which more bytes pass a rank's link than without compression."""
    rules = {rule.rule: rule for rule in config.compress.resolutions}
    warnings = []
    for group in result.groups:
        if costs_more(group.link_bytes, group.dense_link_bytes):
            rule = rules[group.rule]
            choices = [
                (phase.use, phase.exchange or rule.exchange) for phase in rule.schedule.phases
            ]
            warnings.append(
                f"{group.rule}: {1 / group.link_ratio:.1f} times as many bytes pass a rank's link as "
                f"uncompressed with {result.workers} ranks; use {link_remedy(choices, result.workers)}"
            )
    return warnings


def _check_memory(config: Config, shapes: Mapping[str, tuple[int, ...]], workers: int) -> None:
    """Raise GradcompError if the ranks need more memory than this machine has."""
    total = 4 * sum(map(math.prod, shapes.values()))
    largest = 4 * max(map(math.prod, shapes.values()))
    bucket = max(largest, min(config.compress.bucket_bytes, total))
    # A rank has a gradient and an average of a bucket at a time, and state of all tensors.
    each = 2 * bucket + (total if config.stateful else 0)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if workers * each > memory:
        raise GradcompError(
            f"workers is {workers}, and each needs about {each / 2**20:.0f} MiB; at most "
            f"{memory // each} fit into this machine's memory: simulate fewer, or a smaller model"
        )
