"""One rank's compression: resolves tensors, starts their rounds, keeps state and statistics."""

from __future__ import annotations

import logging
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gradcomp.codec.arrays import ByteArray, FloatArray, room
from gradcomp.codec.codec import get_codec
from gradcomp.codec.devices import HOST, Device, device_of
from gradcomp.codec.spec import Spec
from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError
from gradcomp.exchange.automatic import Choice
from gradcomp.exchange.averaging import MEAN
from gradcomp.exchange.memory import hands_over
from gradcomp.exchange.patterns.alone import Alone
from gradcomp.exchange.patterns.base import Context, Member
from gradcomp.exchange.rounds import BucketRound, Ready, Request, Round
from gradcomp.exchange.select import (
    exchange_choice,
    exchange_pattern,
    pattern_between_nodes,
    scatter_refusal,
)
from gradcomp.runtime.agree.step_check import ParametersAt, check_step, step_text
from gradcomp.runtime.buckets import make_buckets
from gradcomp.runtime.measure.stats import Stats
from gradcomp.runtime.policy.auto import Policy
from gradcomp.runtime.policy.decision import Decision, PolicyGroup
from gradcomp.runtime.policy.predictions import predictions
from gradcomp.runtime.resolve import Resolved, Resolver
from gradcomp.runtime.state.loss_scale import check_sends_nan
from gradcomp.runtime.state.rank_state import RankState, State

__all__ = ["Pipeline"]

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_COPIED = frozenset(
    {
        "config",
        "rank",
        "world_size",
        "ranks_per_node",
        "_scatters",
        "elastic",
        "_state",
        "_policy",
        "_script_step",
    }
)
"""Attributes that a copy has, too."""


class Pipeline:
    """Compresses the gradients of one rank according to a configuration.

    Args:
        config: a configuration, or a spec string for all tensors (small ones travel dense, see
            `Config.from_spec`).
        rank: this rank, in [0, world_size).
        world_size: number of ranks that average together.
        ranks_per_node: number of consecutive ranks in each of the engine's nodes, for `two_level`;
            ``compress.ranks_per_node`` takes precedence.
        scatters: rounds return sums of this rank's own rows; see `ReduceScatter`.
        elastic: ranks come and go: one that is alone now does not compress what it would not send;
            see `Alone`.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: with two_level, the ranks do not form equal nodes; a spec cannot travel in a
            reduce-scatter; or ``compress.prior`` has two entries of one group.
        ValueError: ``rank`` is not in its range.
    """

    _peer_device: Device | None = None

    def __init__(
        self,
        config: Config | str,
        rank: int = 0,
        world_size: int = 1,
        ranks_per_node: int = 1,
        scatters: bool = False,
        elastic: bool = False,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}; it must be in [0, {world_size}), the world size")
        self.config = Config.from_spec(config) if isinstance(config, str) else config
        self.rank = rank
        self.world_size = world_size
        self._scatters = scatters
        self.elastic = elastic
        compress = self.config.compress
        for label, spec, exchange in compress.choices if scatters else ():
            refusal = scatter_refusal(spec, exchange)
            if refusal is not None:
                raise ConfigError(f"{label}: {refusal}")
        for rule in compress.resolutions if scatters else ():
            if rule.averaging != MEAN:
                raise ConfigError(
                    f"{rule.rule} has {rule.averaging}, and a reduce-scatter adds up ranks; leave them "
                    "out"
                )
        self.ranks_per_node = compress.ranks_per_node or ranks_per_node if compress.two_level else 1
        self._state = RankState(rank, world_size, self.ranks_per_node)
        predicted = predictions(compress.prior, world_size)
        self._policy = Policy(predicted) if compress.policy == "auto" else None
        self._script_step: int | None = None
        self._begin(None)

    def _begin(self, epoch: int | None) -> None:
        """Make everything that only this process can use."""
        compress = self.config.compress
        self.stats = Stats(ranks=self.world_size, scatters=self._scatters)
        self.node = self._state.node
        context = Context(
            self._state.arrays,
            self.config.seed,
            self.rank,
            self.world_size,
            self.ranks_per_node,
            self._state.rates,
            self._scatters,
            self._peer_device,
            self.elastic,
        )
        self._resolver = Resolver(self.config, context, self._policy)
        if epoch is not None:
            self._resolver.set_epoch(epoch)
        self._fresh = True
        # Specs that no device takes, of which the user knows.
        self._on_host: set[str] = set()
        self._depends_on_steps = bool(self.config.check_replicas_every) or any(
            _depends_on_steps(spec, exchange) for _, spec, exchange in compress.choices
        )

    def begin_peer_messages(self, device: Device) -> None:
        """Take gradients in the memory of a device that sends messages to other ranks' devices.

        Every rank must call it, or none, and before the first round of this process.
        """
        self._peer_device = device
        self._begin(self.epoch)

    # Copies and pickles: configuration and state. Statistics begin anew.

    def __getstate__(self) -> dict[str, Any]:
        return {
            **{name: value for name, value in vars(self).items() if name in _COPIED},
            "epoch": self._resolver.epoch,
        }

    def __setstate__(self, copied: dict[str, Any]) -> None:
        epoch = copied.pop("epoch")
        vars(self).update(copied)
        self._begin(epoch)

    def mismatch(self, rank: int, world_size: int, ranks_per_node: int) -> str | None:
        """Why a copy, made elsewhere, cannot continue as this rank; None if it can."""
        own = (self.rank, self.world_size, self.ranks_per_node)
        here = (rank, world_size, ranks_per_node if self.config.compress.two_level else 1)
        if own == here:
            return None
        return (
            f"this is a copy of the compressor of rank {self.rank} of {self.world_size} with "
            f"{self.ranks_per_node} ranks in a node, and this is rank {rank} of {world_size} with "
            f"{here[2]}: make a new one, and give load_state_dict the list of all ranks' states"
        )

    def keep_stats(self, stats: Stats) -> None:
        """Go on counting in the statistics of an earlier pipeline, perhaps of other ranks."""
        stats.ranks = self.world_size
        self.stats = stats

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0; every rank must call it before the epoch's first step.

        Only schedules that count epochs need it, in a parameter or between specs.

        Raises:
            ValueError: ``epoch`` is negative.
        """
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}; it must be at least 0")
        self._resolver.set_epoch(epoch)

    @property
    def epoch(self) -> int | None:
        """The present epoch; None before the first `set_epoch`."""
        return self._resolver.epoch

    def set_lr(self, lr: float | Mapping[str, float]) -> None:
        """Set the learning rate of the coming step, for specs with ``lr=scale``.

        Args:
            lr: in [0, 1e12], of all tensors, or of each by name; the same on every rank. Rates
                below 1e-12 count as 0.

        Raises:
            ConfigError: a rate is not in its range.
        """
        self._state.rates.set(lr)

    def set_loss_scale(self, scale: float) -> None:
        """Begin a step of mixed precision, whose loss is multiplied by ``scale``.

        Every rank must call it before every step, with the same value, and before `state_dict`.
        Memories follow a change of scale. A smaller scale than in the last step means that all
        ranks skipped that step: memories return to their values before it. From the first call on,
        a gradient with an element that is not finite is sent as NaN.

        Raises:
            ConfigError: ``scale`` is not a positive number, or a codec with random elements is
                exchanged by sra, which may lose a NaN, or a spec gives steps of an optimizer.
        """
        if not self._state.loss_scale.active:
            check_sends_nan(self.config)
        self._state.set_loss_scale(scale)

    def set_step(self, step: int) -> None:
        """Tell the script's own step, counted from 0; before each step, on every rank.

        The ranks compare it in every step, so a rank that has skipped one is found at once.

        Raises:
            ValueError: ``step`` is negative.
        """
        if step < 0:
            raise ValueError(f"step is {step}; it must be at least 0")
        self._script_step = step

    def ranks_of(self, exchange: str) -> int:
        """Number of ranks of an exchange; of nodes, with `two_level`."""
        return self.world_size if pattern_between_nodes(exchange) is None else self.node.count

    @property
    def automatic(self) -> dict[str, Choice]:
        """The rules for which `auto` takes another pattern with so many ranks than with two."""
        if self._scatters:
            return {}
        found = {}
        for rule, schedule, exchange, averaging in self.config.compress.resolutions:
            for index, phase in enumerate(schedule.phases):
                chosen = phase.exchange or exchange
                ranks = self.ranks_of(chosen)
                choice = exchange_choice(phase.use, chosen, ranks, averaging, self._peer_device)
                if choice.pattern != exchange_pattern(phase.use, chosen):
                    found[f"{rule}[{index}]" if schedule.switches else rule] = choice
        return found

    # The comparison with other ranks; see `gradcomp.runtime.agree.step_check`.

    @property
    def compares_steps(self) -> bool:
        """Whether the ranks compare themselves in each step: some average depends on earlier ones."""
        return self.world_size > 1 and self._depends_on_steps

    @property
    def next_step(self) -> int:
        """Number of steps so far, those before the last checkpoint included."""
        return self._state.steps

    @property
    def fresh(self) -> bool:
        """Whether the state is new or was loaded, and was not compared since."""
        return self._fresh

    def step_text(self, parameters: ParametersAt | None = None) -> ByteArray:
        """This rank's text for `check_step` before a step.

        Args:
            parameters: digests of the model's parameters; None in most steps.

        Returns:
            JSON in bytes, of a multiple of 64 bytes.
        """
        progress: dict[str, Any] = {"step": self.next_step, "epoch": self._resolver.epoch}
        if self._script_step is not None:
            progress["the script's step"] = self._script_step
        if self._state.loss_scale.active:
            progress["loss scale"] = self._state.loss_scale.scale
        state = None
        if self._fresh:
            state = self._state.compared()
            choices = [(rule, choice.pattern) for rule, choice in self.automatic.items()]
            if choices:
                state["exchange: auto"] = repr(choices)
            if self._policy is not None:
                decisions = [one.to_state() for one in self._policy.decisions.values()]
                state["decisions of the policy"] = repr(decisions)
        return step_text(progress, state, parameters)

    def check_step(self, replies: ByteArray) -> None:
        """Compare all ranks' `step_text`, one after the other in rank order.

        Raises:
            ProtocolError: the ranks differ.
        """
        check_step(replies, self.world_size)
        self.go_on()

    def go_on(self) -> None:
        """Begin the step: its texts are compared, and the state is no longer `fresh`."""
        self._fresh = False

    # Resolution.

    def resolve(self, name: str, shape: tuple[int, ...]) -> Resolved:
        """The decision about a tensor for its next round. Tensors of equal specs share aggregators.

        A tensor of a shape that its spec's algorithm does not take travels dense.

        Raises:
            ConfigError: a schedule counts epochs, and `set_epoch` was never called.
        """
        return self._resolver.resolve(name, shape, self._state.step(name))

    def resolve_all(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Resolved]:
        """`resolve` for each of several tensors, by name."""
        return {name: self.resolve(name, shape) for name, shape in shapes.items()}

    def sends_dense(self, resolved: Resolved) -> bool:
        """Whether the tensor travels uncompressed, so that an engine may send it in its own dtype.

        False if an earlier spec has left a residual, which must be added to the gradient first.
        """
        return resolved.dense and not self._state.has_residual(resolved.key.name)

    def waits_dense(self, resolved: Resolved) -> bool:
        """As `sends_dense`, of a tensor whose algorithm begins in a later step."""
        name = resolved.key.name
        waits = self._state.step(name) < resolved.aggregator.start_step
        return waits and not self._state.has_residual(name)

    def always_dense(self, resolved: Resolved) -> bool:
        """Whether the tensor travels dense in every step, for graphs that are traced once."""
        return resolved.lasting and not self.measures and self.sends_dense(resolved)

    def on_device(self, resolved: Resolved, device: Device) -> bool:
        """Whether the next round takes a gradient in the memory of a device; else give it on the host.

        With ``compress.device: host`` none does. Gradients must be on the host for a step that hands
        over state from one spec to another, while a parameter changes in each step, and for comparisons
        with exact averages.
        """
        aggregator = resolved.aggregator
        if self.config.compress.device == "host" or resolved.dense or resolved.key.numel == 0:
            return False
        step = self._state.step(resolved.key.name)
        spec = resolved.spec.steady(step, self.epoch or 0)
        if spec is None:
            return False
        takes = (
            (
                aggregator.on_devices
                or (aggregator.on_peer_devices and device.to_peers(spec.codec) is not None)
            )
            and hands_over(spec.memory)
            and device.takes(spec, resolved.key.shape)
        )
        if not takes and self.rank == 0 and spec.canonical not in self._on_host:
            self._on_host.add(spec.canonical)
            _tell_of_host(self.config, spec)
        begun = step >= aggregator.start_step and self._state.continues(resolved)
        return takes and begun and not self.compares

    def buckets(self, resolved: Mapping[str, Resolved]) -> list[tuple[str, ...]]:
        """The tensors that `bucket_round` should average together.

        Args:
            resolved: the decisions about all tensors, in the order of the model.

        Returns:
            The names in each bucket, last tensors first, as in a backward pass. Tensors whose
            aggregators share a bucket form buckets of about ``compress.bucket_bytes`` bytes. Every
            other tensor is alone.
        """
        groups: dict[Hashable, list[tuple[str, int]]] = {}
        others = []
        for name, decision in reversed(list(resolved.items())):
            aggregator = decision.bucket_aggregator
            if aggregator is None:
                others.append((name,))
            else:
                groups.setdefault(aggregator.bucket, []).append((name, 4 * decision.key.numel))
        limit = self.config.compress.bucket_bytes
        buckets = [names for group in groups.values() for names in make_buckets(group, limit)]
        return [*buckets, *others]

    # Rounds.

    def round(
        self,
        name: str,
        grad: FloatArray,
        dense_bytes: int | None = None,
        resolved: Resolved | None = None,
        overwrite: bool = False,
    ) -> Round:
        """Start averaging one tensor; the requests it yields are counted in ``stats``.

        Args:
            name: unique, and the same on every rank.
            grad: C-contiguous float32, of the same shape on every rank.
            dense_bytes: the gradient's uncompressed size; None for ``grad.nbytes``.
            resolved: the tensor's decision for this round; None to resolve it here.
            overwrite: see `bucket_round`.

        Returns:
            A generator that returns the average, flat float32.
        """
        if resolved is None:
            resolved = self.resolve(name, grad.shape)
        self.stats.count_gradients(grad.nbytes if dense_bytes is None else dense_bytes)
        (begun,) = self._state.begin([resolved], [grad])
        whole = self._state.hand_over(resolved, begun)
        out = grad.reshape(-1) if overwrite else room(grad.size)
        inner = resolved.aggregator.round(whole, resolved.key, self._count(name), out)
        return self._counted(name, {name: grad}, inner)

    def bucket_round(
        self,
        label: str,
        grads: Mapping[str, FloatArray],
        dense_bytes: int | None = None,
        overwrite: bool = False,
        resolved: Mapping[str, Resolved] | None = None,
    ) -> BucketRound:
        """Start averaging the tensors of a bucket; see `round`.

        Each phase is one request for all tensors. The averages equal those of `round`, with two
        exceptions: codecs that ``share`` encode all tensors of a bucket together, and the exchange
        ``sra`` cuts a bucket into chunks.

        Args:
            label: prefix of the requests' names: unique, and the same on every rank. The requests
                of a single tensor have the tensor's name instead.
            grads: by name, in an order that is the same on every rank; C-contiguous float32.
            dense_bytes: uncompressed size of all gradients; None for the sum of their ``nbytes``.
            overwrite: averages may overwrite the gradients; not all aggregators do so. Otherwise
                averages on the host reuse the memory of earlier averages to which nothing refers
                any more, and those on other devices have new memory.
            resolved: the tensors' decisions for this round; None to resolve them here.

        Returns:
            A generator that returns the averages in the order of ``grads``, flat float32.

        Raises:
            ValueError: the tensors' aggregators do not share a bucket.
        """
        if resolved is None:
            resolved = self.resolve_all({name: grad.shape for name, grad in grads.items()})
        if len(grads) == 1:
            ((label, grad),) = grads.items()
            if resolved[label].bucket_aggregator is None:
                return _listed(self.round(label, grad, dense_bytes, resolved[label], overwrite))
        members: list[Member] = []
        decisions = [resolved[name] for name in grads]
        begun = self._state.begin(decisions, list(grads.values()))
        for (name, grad), decision, sent in zip(grads.items(), decisions, begun, strict=True):
            aggregator = decision.bucket_aggregator
            if aggregator is None or (
                members and aggregator.bucket != members[0].aggregator.bucket
            ):
                raise ValueError(f"'{name}' does not belong in this bucket: average it by itself")
            whole = self._state.hand_over(decision, sent)
            out = grad.reshape(-1) if overwrite else _room_beside(grad)
            members.append(Member(aggregator, whole, decision.key, self._count(name), out))
        if dense_bytes is None:
            dense_bytes = sum(grad.nbytes for grad in grads.values())
        if not isinstance(members[0].aggregator, Alone):
            self.stats.count_gradients(dense_bytes)
        bucket = members[0].aggregator.bucket_round(label, members)
        return self._counted(label, grads, bucket)

    def count_dense(self, name: str, nbytes: int) -> None:
        """Count a tensor of ``nbytes`` that an engine averages itself, as `sends_dense` or `waits_dense` allow."""
        self._state.go_dense(name)
        self._count(name)
        self.stats.count_gradients(nbytes)
        self.stats.count("allreduce", nbytes)

    def _count(self, name: str) -> int:
        """Count one more average of a tensor; returns the number of earlier averages."""
        step = self._state.count(name)
        self.stats.steps = max(self.stats.steps, step + 1)
        return step

    def _counted(
        self,
        label: str,
        grads: Mapping[str, FloatArray],
        inner: Generator[Request | Ready, Any, _Result],
    ) -> Generator[Request | Ready, Any, _Result]:
        """The round, with its requests counted and its phases profiled."""
        profile = self.stats.profile
        send = inner.send if profile is None else partial(profile.resume, label, inner)
        exact = None
        if profile is not None and profile.error:
            exact = yield from profile.exact(label, list(grads.values()))
        try:
            request = send(None)
            while True:
                if isinstance(request, Ready):
                    request = send((yield request))
                    continue
                if request.group != "leaders" or self.node.leads:
                    inside = "node " if request.group == "node" else ""
                    ranks = self.node.count if request.group == "leaders" else None
                    self.stats.count(f"{inside}{request.kind}", request.nbytes, ranks)
                    if profile is not None:
                        profile.requested(label, request)
                request = send((yield request))
        except StopIteration as stop:
            result: _Result = stop.value
            if profile is not None and exact is not None:
                averages: Any = result if isinstance(result, list) else [result]
                profile.compare(label, exact, dict(zip(grads, averages, strict=True)))
            return result

    @property
    def compares(self) -> bool:
        """Whether averages are compared with exact ones, so that rounds have one more phase."""
        return self.stats.profile is not None and self.stats.profile.error

    # The policy ``auto``.

    @property
    def measures(self) -> bool:
        """Whether a policy measures exchanges in some steps; see `begin_step`."""
        return self._policy is not None

    @property
    def varies(self) -> bool:
        """Whether `buckets` may differ between steps."""
        return self.measures or self.config.switches

    @property
    def measured(self) -> tuple[PolicyGroup, ...]:
        """The groups whose exchanges are to be timed in this step; see `record`.

        Their tensors must be averaged group by group, with nothing else under way.
        """
        return () if self._policy is None else self._policy.measured

    def begin_step(
        self, resolved: Iterable[Resolved], ended: float, now: float
    ) -> Generator[Request, Any, tuple[Decision, ...]]:
        """Begin a step, before any of its gradients is averaged.

        Only the policy ``auto`` needs this call, and only with it the round makes requests. Without
        the call, everything is compressed. Afterwards tensors must be resolved again.

        Args:
            resolved: the decisions about all tensors of the step.
            ended: time of the last average of the previous step, in seconds.
            now: the present time, by the same clock.

        Returns:
            A round that returns the new decisions.
        """
        if self._policy is None:
            return ()
        before = set(self._policy.decisions)
        idle = self._policy.idle
        groups = [one.group for one in resolved if one.group is not None]
        yield from self._policy.begin_step(groups, ended, now)
        if before != self._policy.decisions.keys() or not (idle and self._policy.idle):
            self._resolver.forget()
        self.stats.decisions = tuple(self._policy.decisions.values())
        if before and not self.stats.decisions and self.rank == 0:
            _log.info("policy auto: a second look")
        return tuple(one for one in self.stats.decisions if one.group not in before)

    def record(self, group: PolicyGroup, seconds: float) -> None:
        """Record the time, in seconds, of averaging the tensors of a group in this step."""
        assert self._policy is not None  # ensured by `measured`
        self._policy.record(group, seconds)

    def decide_again(self) -> None:
        """Forget the decisions of the policy ``auto``, and measure anew; on all ranks at once."""
        if self._policy is not None:
            self._policy.measure_anew()
            self._resolver.forget()
            self.stats.decisions = ()
            self._fresh = True

    # Checkpoints.

    def state_dict(self) -> State:
        """This rank's state: numbers, strings and flat float32 arrays, which are copies.

        Keys of the header:

        - ``version``, ``rank``, ``world_size``;
        - ``ranks_per_node``: 1 without ``two_level``. With it a tensor's arrays belong to the node
          and are equal on all of its ranks;
        - ``rounds``: number of averages so far, by tensor name;
        - ``specs``: canonical spec of the last round, by tensor name;
        - ``loss_scale``: see `set_loss_scale`;
        - ``decisions`` of the policy ``auto``; see `gradcomp.runtime.policy.decision.Decision`.

        Keys of arrays, each by tensor name:

        - ``residual``: error feedback; DGC's velocity;
        - ``momentum``: of signum and momentum_correction;
        - ``dion_q``: Dion's factors of columns, one vector after the other;
        - ``powersgd_p``, ``powersgd_q``: PowerSGD's factors of rows and columns, one vector after
          the other;
        - ``residual_lr``: the learning rate of a residual's last step, with ``lr=scale``;
        - ``basis``: learned from averages; see `gradcomp.Codec.learn`;
        - ``carried``: starting points of encoders; see `gradcomp.EncodeItem`.
        """
        decisions = [] if self._policy is None else list(self._policy.decisions.values())
        return {**self._state.to_dict(), "decisions": [one.to_state() for one in decisions]}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state.

        At another world size, or with other nodes, every rank gets the mean of the saved arrays.
        This preserves the mean over ranks: for residuals, the gradient that is still to be applied.
        PowerSGD's factors and bases, which are equal on all ranks, do not change.

        Args:
            state: this rank's own state, for a bit-exact resume at the same world size (and nodes);
                or the states of all ranks, in any order, for any world size.

        Raises:
            StateError: the state is another rank's, incomplete, or of an unknown version. The
                residuals of ranks are unrelated, so one rank's state must never be loaded on all.
        """
        decisions = self._state.load(state)
        self._fresh = True
        if self._policy is not None:
            self._resolver.forget()
            self._policy.restart(Decision.from_state(one) for one in decisions)
            self.stats.decisions = tuple(self._policy.decisions.values())


def _depends_on_steps(spec: Spec, exchange: str) -> bool:
    """Whether averages depend on anything but the gradients of their step.

    Payloads that are added depend on the step's number if their codec is seeded.
    """
    pattern = exchange_pattern(spec, exchange)
    if pattern == "dense":
        return False
    return pattern != "reduce" or spec.stateful or "seeded" in get_codec(spec.first_codec).caps


def _room_beside(grad: FloatArray) -> FloatArray:
    """Flat memory of the gradient's size on its device."""
    device = device_of(grad)
    return room(grad.size) if device is HOST else device.zeros(grad.size)


def _listed(one: Round) -> BucketRound:
    return [(yield from one)]


def _tell_of_host(config: Config, spec: Spec) -> None:
    """Warn that gradients of a device are compressed on the host, as nothing there takes their spec."""
    _log.warning(
        "gradcomp: compress.device: %s has no effect on '%s': no kernel takes it or its exchange, so gradients "
        "on a GPU are compressed on the CPU; docs/gpu.md lists what kernels take",
        config.compress.device,
        spec,
    )
