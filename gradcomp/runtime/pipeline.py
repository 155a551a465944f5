"""One rank's compression: resolves tensors, starts their rounds, keeps state and statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gradcomp.codec.arrays import FloatArray, room
from gradcomp.codec.devices import HOST, Device, device_of
from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError
from gradcomp.exchange.averaging import MEAN
from gradcomp.exchange.engine import Engine
from gradcomp.exchange.patterns.base import Context, Member
from gradcomp.exchange.patterns.single_rank import Alone
from gradcomp.exchange.pieces import is_cut, round_of_pieces
from gradcomp.exchange.rounds import BucketRound, Round, TensorKey
from gradcomp.exchange.select import scatter_refusal
from gradcomp.runtime.agree.step_comparison import StepComparison
from gradcomp.runtime.buckets import make_buckets
from gradcomp.runtime.measure.counted import counted
from gradcomp.runtime.measure.profile_files import profile_as_configured
from gradcomp.runtime.measure.profiled_engine import ProfiledEngine
from gradcomp.runtime.measure.stats import Stats
from gradcomp.runtime.policy.auto import Policy
from gradcomp.runtime.policy.decision import Decision
from gradcomp.runtime.policy.predictions import predictions
from gradcomp.runtime.policy.run import PolicyRun
from gradcomp.runtime.resolve import Resolved, Resolver
from gradcomp.runtime.state.last_step import LastStep
from gradcomp.runtime.state.loss_scale import check_sends_nan
from gradcomp.runtime.state.rank_state import RankState, State

__all__ = ["Pipeline"]

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

    Attributes:
        stats: of this rank.
        resolver: decides about tensors.
        policy: the run of the policy ``auto``.
        comparison: with the other ranks, in each step.
        last_step: takes back what the last step changed.

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
        self.config = Config.of(config)
        self.rank, self.world_size = rank, world_size
        self._scatters, self.elastic = scatters, elastic
        compress = self.config.compress
        _check_scatters(self.config, scatters)
        self.ranks_per_node = compress.ranks_per_node or ranks_per_node if compress.two_level else 1
        self._state = RankState(rank, world_size, self.ranks_per_node)
        prior = predictions(compress.prior, world_size)
        self._policy = Policy(prior) if compress.policy == "auto" else None
        self._begin(None)

    def _begin(self, epoch: int | None) -> None:
        """Make everything that only this process can use."""
        self.keep_stats(Stats(scatters=self._scatters))
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
        self.resolver = Resolver(self.config, context, self._policy)
        if epoch is not None:
            self.resolver.set_epoch(epoch)
        self.policy = PolicyRun(self._policy, self.resolver.forget, self.rank == 0)
        self.comparison = StepComparison(self.config, self._state, self.resolver)
        self.last_step = LastStep(self._state)

    def keep_stats(self, stats: Stats) -> None:
        """Go on with the statistics of an earlier pipeline of this process."""
        stats.ranks, stats.rank = self.world_size, self.rank
        self.stats = stats
        self._state.watch(stats.residuals, stats.samples)

    def begin_peer_messages(self, device: Device) -> None:
        """Take gradients in the memory of a device that sends messages to other ranks' devices.

        Every rank must call it, or none, and before the first round of this process.
        """
        self._peer_device = device
        self._begin(self.epoch)

    # Copies and pickles: configuration and state. Statistics start from zero.

    def __getstate__(self) -> dict[str, Any]:
        copied = {name: value for name, value in vars(self).items() if name in _COPIED}
        return {**copied, "epoch": self.resolver.epoch}

    def __setstate__(self, copied: dict[str, Any]) -> None:
        epoch = copied.pop("epoch")
        vars(self).update(copied)
        self._begin(epoch)

    def mismatch(self, rank: int, world_size: int, ranks_per_node: int) -> str | None:
        """Why a copy, made elsewhere, cannot continue as this rank; None if it can."""
        copied = (self.rank, self.world_size, self.ranks_per_node)
        place = (rank, world_size, ranks_per_node if self.config.compress.two_level else 1)
        if copied == place:
            return None
        return (
            f"this is a copy of the compressor of rank {self.rank} of {self.world_size} with "
            f"{self.ranks_per_node} ranks in a node, and this is rank {rank} of {world_size} with "
            f"{place[2]}: make a new one, and give load_state_dict the list of all ranks' states"
        )

    def profiled(self, engine: Engine, name: str = "") -> ProfiledEngine:
        """Wrap an engine, of this name in messages, to measure its requests; begins a configured profile."""
        self.stats.engine = name
        profile_as_configured(self.stats, self.config.stats, self.rank)
        return ProfiledEngine(engine, self.stats)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0; every rank must call it before the epoch's first step.

        Only schedules that count epochs need it, in a parameter or between specs.

        Raises:
            ValueError: ``epoch`` is negative.
        """
        self.resolver.set_epoch(epoch)

    @property
    def epoch(self) -> int | None:
        """The present epoch; None before the first `set_epoch`."""
        return self.resolver.epoch

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
        """Begin a step of mixed precision with a loss that is multiplied by ``scale``.

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

    def resolve(self, name: str, shape: tuple[int, ...], default_rules: bool = True) -> Resolved:
        """The decision about a tensor for its next round; see `Resolver.resolve`.

        Tensors of equal specs share aggregators. A shape that a spec's algorithm does not take travels dense.

        Raises:
            ConfigError: a schedule counts epochs, and `set_epoch` was never called.
        """
        return self.resolver.resolve(name, shape, self._state.step(name), default_rules)

    def resolve_all(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Resolved]:
        """`resolve` for each of several tensors, by name."""
        return {name: self.resolve(name, shape) for name, shape in shapes.items()}

    def sends_dense(self, resolved: Resolved) -> bool:
        """Whether the tensor travels uncompressed, so that an engine may send it in its own dtype.

        False if an earlier spec has left a residual, which must be added to the gradient first.
        """
        return resolved.dense and not self._state.has_residual(resolved)

    def waits_dense(self, resolved: Resolved) -> bool:
        """As `sends_dense`, of a tensor with an algorithm that begins in a later step."""
        waits = self._state.step(resolved.key.name) < resolved.aggregator.start_step
        return waits and not self._state.has_residual(resolved)

    def always_dense(self, resolved: Resolved) -> bool:
        """Whether the tensor travels dense in every step, for graphs that are traced once."""
        return resolved.lasting and not self.policy.measures and self.sends_dense(resolved)

    def on_device(self, resolved: Resolved, device: Device) -> bool:
        """Whether the next round takes a gradient in the memory of a device; else give it on the host.

        With ``compress.device: host`` none does. Gradients must be on the host for a step that hands
        over state from one spec to another, while a parameter changes in each step, and for comparisons
        with exact averages.
        """
        step = self._state.step(resolved.key.name)
        taken = not is_cut(resolved.key.numel) and self.resolver.on_device(resolved, step, device)
        return taken and self._state.continues(resolved) and not self.stats.compares

    def buckets(self, resolved: Mapping[str, Resolved]) -> list[tuple[str, ...]]:
        """The tensors that `bucket_round` should average together.

        Args:
            resolved: the decisions about all tensors, in the order of the model.

        Returns:
            The names in each bucket, last tensors first, as in a backward pass. Tensors with
            aggregators that share a bucket form buckets of about ``compress.bucket_bytes`` bytes. Every
            other tensor is alone.
        """
        tensors = []
        for name, tensor in reversed(list(resolved.items())):
            aggregator = tensor.bucket_aggregator
            kind = None if aggregator is None else aggregator.bucket
            tensors.append((name, kind, 4 * tensor.key.numel))
        return make_buckets(tensors, self.config.compress.bucket_bytes)

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
        resolved = resolved or self.resolve(name, grad.shape)
        self.stats.count_gradients(grad.nbytes if dense_bytes is None else dense_bytes)
        out = grad.reshape(-1) if overwrite else room(grad.size)
        begin = partial(self._round, resolved)
        if resolved.cut:
            self._state.begin_copies([name])
            self._count_averages(self._state.count([name]))
            inner = round_of_pieces(resolved.key, grad, out, begin)
        else:
            inner = begin(resolved.key, grad, out)
        return counted(self.stats, self.node, name, {name: grad}, inner)

    def _round(self, chosen: Resolved, key: TensorKey, grad: FloatArray, out: FloatArray) -> Round:
        """The round of a tensor or of a piece."""
        chosen = replace(chosen, key=key)
        (whole,), (step,) = self._state.begin([chosen], [grad])
        self.stats.count_average(step)
        return chosen.aggregator.round(whole, key, step, out)

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
        exceptions: codecs with ``whole_bucket`` look at all tensors of a bucket, and the exchange
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
        resolved = resolved or self.resolve_all({n: grad.shape for n, grad in grads.items()})
        if len(grads) == 1:
            ((label, grad),) = grads.items()
            if resolved[label].bucket_aggregator is None:
                return _listed(self.round(label, grad, dense_bytes, resolved[label], overwrite))
        members: list[Member] = []
        decisions, arrays = [resolved[name] for name in grads], list(grads.values())
        begun, steps = self._state.begin(decisions, arrays)
        self._count_averages(steps)
        first = decisions[0].bucket_aggregator
        for grad, decision, sent, step in zip(arrays, decisions, begun, steps, strict=True):
            aggregator, key = decision.bucket_aggregator, decision.key
            if aggregator is None or (first is not None and aggregator.bucket != first.bucket):
                raise ValueError(f"'{key.name}' is not of this bucket: average it by itself")
            out = grad.reshape(-1) if overwrite else _room_beside(grad)
            members.append(Member(aggregator, sent, key, step, out))
        if dense_bytes is None:
            dense_bytes = sum(grad.nbytes for grad in grads.values())
        if not isinstance(members[0].aggregator, Alone):
            self.stats.count_gradients(dense_bytes)
        bucket = members[0].aggregator.bucket_round(label, members)
        return counted(self.stats, self.node, label, grads, bucket)

    def count_dense(self, sizes: Mapping[str, int]) -> None:
        """Count tensors that an engine averages itself, as `sends_dense` or `waits_dense` allow: bytes by name."""
        self._state.go_dense(sizes.keys())
        self._count_averages(self._state.count(sizes))
        self.stats.count_dense(sum(sizes.values()))

    def _count_averages(self, earlier: Sequence[int]) -> None:
        """Count one more average of tensors in the statistics, after these."""
        for step in dict.fromkeys(earlier):
            self.stats.count_average(step)

    def state_dict(self) -> State:
        """This rank's state, with copies of its arrays; `State` lists the keys."""
        decisions = [decision.to_state() for decision in self.policy.decisions]
        return {**self._state.to_dict(), "decisions": decisions}

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
        self.comparison.fresh = True
        if self.policy.measures:
            self.policy.restart(Decision.from_state(decision) for decision in decisions)
            self.stats.decisions = self.policy.decisions


def _check_scatters(config: Config, scatters: bool) -> None:
    """Raise ConfigError if a spec or an averaging of the configuration cannot be in a reduce-scatter."""
    if not scatters:
        return
    for label, spec, exchange in config.compress.choices:
        refusal = scatter_refusal(spec, exchange)
        if refusal is not None:
            raise ConfigError(f"{label}: {refusal}")
    for rule in config.compress.resolutions:
        if rule.averaging != MEAN:
            raise ConfigError(
                f"{rule.rule} has {rule.averaging}, and a reduce-scatter adds up ranks; leave them "
                "out"
            )


def _room_beside(grad: FloatArray) -> FloatArray:
    """Flat memory of the gradient's size on its device."""
    device = device_of(grad)
    return room(grad.size) if device is HOST else device.zeros(grad.size)


def _listed(round_: Round) -> BucketRound:
    return [(yield from round_)]
