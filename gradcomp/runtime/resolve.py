"""Resolution: which aggregator averages a tensor in its next round."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from gradcomp.codec.codec import get_codec
from gradcomp.codec.devices import Device
from gradcomp.codec.spec import END, Spec, parse
from gradcomp.config.schema import Config
from gradcomp.config.spec_schedule import Resolution, SpecPhase, SpecSchedule
from gradcomp.errors import ConfigError
from gradcomp.exchange.automatic import Choice
from gradcomp.exchange.averaging import MEAN, Averaging
from gradcomp.exchange.make_memory import hands_over
from gradcomp.exchange.patterns.base import Aggregator, BucketAggregator, Context
from gradcomp.exchange.patterns.dense import Dense
from gradcomp.exchange.patterns.dense_momentum import DenseMomentum
from gradcomp.exchange.patterns.differences import AverageMomentum
from gradcomp.exchange.patterns.reduce_scatter import ReduceScatter
from gradcomp.exchange.pieces import is_cut, pieces_of
from gradcomp.exchange.rounds import TensorKey
from gradcomp.exchange.select import (
    exchange_choice,
    exchange_pattern,
    make_aggregator,
    pattern_between_nodes,
)
from gradcomp.runtime.policy.auto import Policy
from gradcomp.runtime.policy.decision import COMPRESSED, DENSE, PolicyGroup, alternatives

__all__ = ["DENSE_SPEC", "Resolved", "Resolver"]

DENSE_SPEC = parse("identity")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resolved:
    """The decision about one tensor for its next round.

    Attributes:
        key: the tensor.
        phase: the entry of the rule's schedule of specs that holds now.
        spec: the spec of that phase, or its replacement: dense for shapes that an algorithm does
            not take, or the choice of a policy.
        aggregator: runs the round.
        group: the tensor's group for the policy ``auto``; None if the policy does not decide.
        lasting: the decision holds in every step.
        settled: it holds in every later step, as long as the policy's decisions stay.
    """

    key: TensorKey
    phase: SpecPhase
    spec: Spec
    aggregator: Aggregator
    group: PolicyGroup | None
    lasting: bool
    settled: bool

    @cached_property
    def dense(self) -> bool:
        """Whether the gradient itself is all-reduced."""
        return isinstance(self.aggregator, Dense)

    @cached_property
    def bucket_aggregator(self) -> BucketAggregator | None:
        """The aggregator, if tensors may share its rounds."""
        shares = isinstance(self.aggregator, BucketAggregator) and not self.cut
        return self.aggregator if shares else None  # type: ignore[return-value]

    @cached_property
    def reset_every(self) -> Any:
        """Number of steps after which the residual is dropped; 0: never."""
        memory = self.spec.memory
        return 0 if memory is None else memory.params.get("reset_every", 0)

    @cached_property
    def cut(self) -> bool:
        """Whether the tensor is averaged in pieces, as it has more elements than codecs take.

        A reduce-scatter cuts the rows of each rank itself.
        """
        return is_cut(self.key.numel) and not isinstance(self.aggregator, ReduceScatter)

    @property
    def keys(self) -> list[TensorKey]:
        """Those under which memories of the tensor are kept: its own, or its pieces'."""
        if not self.cut:
            return [self.key]
        return [piece.key for piece in pieces_of(self.key.name, self.key.shape)]


class _CachedAggregator(NamedTuple):
    """The aggregator of a spec, for the schedules' values at a step of an epoch."""

    step: int
    epoch: int
    aggregator: Aggregator


class Resolver:
    """Finds the spec of each tensor in the configuration and makes aggregators, one for each spec.

    Args:
        context: the parts of a rank that all aggregators share.
        policy: decides whether groups of tensors are compressed; None to compress all.

    Attributes:
        forgets: number of times that `forget` was called.
    """

    def __init__(self, config: Config, context: Context, policy: Policy | None) -> None:
        self._config = config
        self._context = context
        self._policy = policy
        self._epoch: int | None = None
        self.forgets = 0
        # By name, shape, and whether default rules hold.
        self._rules: dict[tuple[str, tuple[int, ...], bool], Resolution] = {}
        self._settled: dict[tuple[str, tuple[int, ...], bool], Resolved] = {}
        # The last aggregator of each spec, exchange and averaging.
        self._aggregators: dict[tuple[str, str, Averaging], _CachedAggregator] = {}
        # By the spec's text without schedules, too: tensors at different steps alternate, and the
        # tensors of one step must share an aggregator, as it may be their bucket.
        self._in_use: WeakValueDictionary[tuple[str, str, Averaging, str], Aggregator] = (
            WeakValueDictionary()
        )
        self._dense = Dense()
        # Specs without kernels that the user has been warned about.
        self._on_host: set[str] = set()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0.

        Raises:
            ValueError: ``epoch`` is negative.
        """
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}; it must be at least 0")
        self._epoch = epoch

    @property
    def epoch(self) -> int | None:
        """The present epoch; None before the first `set_epoch`."""
        return self._epoch

    def forget(self) -> None:
        """Drop all cached decisions, because a policy has changed some of its decisions."""
        self._settled.clear()
        self.forgets += 1

    def ranks_of(self, exchange: str) -> int:
        """Number of ranks of an exchange; of nodes, with `two_level`."""
        context = self._context
        if pattern_between_nodes(exchange) is None:
            return context.world_size
        return context.world_size // context.ranks_per_node

    @property
    def automatic(self) -> dict[str, Choice]:
        """The rules for which `auto` picks a different pattern at this number of ranks than at two."""
        context = self._context
        if context.scatters:
            return {}
        found = {}
        for rule, schedule, exchange, averaging in self._config.compress.resolutions:
            for index, phase in enumerate(schedule.phases):
                chosen = phase.exchange or exchange
                ranks = self.ranks_of(chosen)
                choice = exchange_choice(phase.use, chosen, ranks, averaging, context.peer_device)
                if choice.pattern != exchange_pattern(phase.use, chosen):
                    found[f"{rule}[{index}]" if schedule.switches else rule] = choice
        return found

    def compared(self) -> dict[str, str]:
        """All decisions that must be equal on all ranks, as short texts by name."""
        values = {}
        choices = [(rule, choice.pattern) for rule, choice in self.automatic.items()]
        if choices:
            values["exchange: auto"] = repr(choices)
        if self._policy is not None:
            decisions = [decision.to_state() for decision in self._policy.decisions.values()]
            values["decisions of the policy"] = repr(decisions)
        return values

    def resolve(
        self, name: str, shape: tuple[int, ...], step: int, default_rules: bool = True
    ) -> Resolved:
        """The decision about a tensor.

        Args:
            step: number of earlier averages of the tensor.
            default_rules: see `Config.resolve`.

        Raises:
            ConfigError: a schedule counts epochs, and `set_epoch` was never called.
        """
        place = name, shape, default_rules
        resolved = self._settled.get(place)
        if resolved is None or step < resolved.phase.use.steps_end:
            rule = self._rules.get(place)
            if rule is None:
                rule = self._rules[place] = self._config.resolve(*place)
            resolved = self._resolve(rule, TensorKey(name, shape, math.prod(shape)), step)
            if resolved.settled:
                self._settled[place] = resolved
        return resolved

    def on_device(self, resolved: Resolved, step: int, device: Device) -> bool:
        """Whether the aggregator takes a gradient in the memory of a device in this step.

        Rank 0 warns, once for each spec, if ``compress.device`` has no effect on it.
        """
        aggregator = resolved.aggregator
        if self._config.compress.device == "host" or resolved.dense or resolved.key.numel == 0:
            return False
        spec = resolved.spec.steady(step, self._epoch or 0)
        if spec is None:
            return False
        takes = (
            (
                aggregator.on_devices
                or (
                    aggregator.on_peer_devices
                    and device.to_peers(get_codec(spec.codec)) is not None
                )
            )
            and hands_over(spec.memory)
            and device.takes(spec, resolved.key.shape)
        )
        if not takes and self._context.rank == 0 and spec.canonical not in self._on_host:
            self._on_host.add(spec.canonical)
            _tell_of_host(self._config, spec)
        return takes and step >= aggregator.start_step

    def _resolve(self, rule: Resolution, key: TensorKey, step: int) -> Resolved:
        if rule.schedule.by_epochs:
            self._check_epoch(rule.schedule)
        epoch = self._epoch or 0
        phase = rule.schedule.at(step, epoch)
        spec, exchange = phase.use, phase.exchange or rule.exchange
        fixed = not (rule.schedule.switches or spec.scheduled)
        settled = not (rule.schedule.switches or spec.by_epochs) and step >= spec.steps_end
        aggregator = self._aggregator(spec, exchange, step, rule.averaging)
        if not aggregator.takes(key.shape):
            return Resolved(key, phase, DENSE_SPEC, self._dense, None, fixed, settled)
        if self._policy is None or isinstance(aggregator, Dense | DenseMomentum | AverageMomentum):
            return Resolved(key, phase, spec, aggregator, None, fixed, settled)
        if step < aggregator.start_step:
            return Resolved(key, phase, spec, aggregator, None, False, False)
        last = spec.at(END, END) if spec.scheduled else spec
        group = PolicyGroup.of(last if spec.at(step, epoch) == last else spec, exchange, key.numel)
        choice = self._policy.choice(group)
        if choice != COMPRESSED:
            others = alternatives(spec)
            spec = others.get(choice, others[DENSE])
            aggregator = self._aggregator(spec, "auto", step, MEAN)
        return Resolved(key, phase, spec, aggregator, group, fixed, settled)

    def _aggregator(self, spec: Spec, exchange: str, step: int, averaging: Averaging) -> Aggregator:
        """The aggregator of a spec; with schedules, the aggregator of this step."""
        epoch = self._epoch or 0
        cached = self._aggregators.get((spec.canonical, exchange, averaging))
        if cached is not None and (
            not spec.scheduled or (cached.step, cached.epoch) == (step, epoch)
        ):
            return cached.aggregator
        if spec.by_epochs:
            self._check_epoch(spec)
        now = spec.at(step, epoch)
        key = spec.canonical, exchange, averaging, now.canonical
        aggregator = self._in_use.get(key)
        if aggregator is None:
            aggregator = make_aggregator(now, self._context, exchange, averaging)
            self._in_use[key] = aggregator
        self._aggregators[key[:3]] = _CachedAggregator(step, epoch, aggregator)
        return aggregator

    def _check_epoch(self, text: Spec | SpecSchedule) -> None:
        if self._epoch is None:
            raise ConfigError(
                f"'{text}' changes with the epoch, which is unknown: call set_epoch(epoch) when an "
                "epoch begins, or give the schedule in steps"
            )


def _tell_of_host(config: Config, spec: Spec) -> None:
    """Warn that gradients of a device are compressed on the host, as nothing there takes their spec."""
    _log.warning(
        "gradcomp: compress.device: %s has no effect on '%s': no kernel takes it or its exchange, so gradients "
        "on a GPU are compressed on the CPU; docs/gpu.md lists what kernels take",
        config.compress.device,
        spec,
    )
