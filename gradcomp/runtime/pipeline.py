"""One rank's compression: which spec each tensor takes, its state, and its statistics."""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.spec import Spec, parse
from gradcomp.config.schema import Config
from gradcomp.config.spec_schedule import Resolution, SpecPhase
from gradcomp.errors import ConfigError, StateError
from gradcomp.exchange.memory import REPLICATED_KINDS, STATE_KINDS, Arrays, MemoryState, state_of
from gradcomp.exchange.nodes import Node
from gradcomp.exchange.patterns.base import Aggregator, BucketAggregator, Context, Member
from gradcomp.exchange.patterns.dense import Dense
from gradcomp.exchange.patterns.dense_momentum import DenseMomentum
from gradcomp.exchange.rounds import BucketRound, Request, Round, TensorKey
from gradcomp.exchange.select import make_aggregator
from gradcomp.runtime.buckets import make_buckets
from gradcomp.runtime.policy import COMPRESSED, DENSE, Decision, Policy, PolicyGroup, alternatives
from gradcomp.runtime.stats import Stats

__all__ = ["STATE_VERSION", "Pipeline", "State"]

State = dict[str, Any]
STATE_VERSION = 1

_Result = TypeVar("_Result")


class Pipeline:
    """Compresses the gradients of one rank according to a configuration.

    Args:
        config: a configuration, or a spec string for all tensors (small ones travel dense, see
            `Config.from_spec`).
        rank: this rank, in [0, world_size).
        world_size: number of ranks that average together.
        ranks_per_node: of the engine, for `two_level`; ``compress.ranks_per_node`` comes before it.

    Raises:
        ConfigError: with two_level, the ranks are no equal nodes.
    """

    def __init__(
        self,
        config: Config | str,
        rank: int = 0,
        world_size: int = 1,
        ranks_per_node: int = 1,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}; it must be in [0, {world_size}), the world size")
        self.config = Config.from_spec(config) if isinstance(config, str) else config
        self.rank = rank
        self.world_size = world_size
        compress = self.config.compress
        self.ranks_per_node = compress.ranks_per_node or ranks_per_node if compress.two_level else 1
        self.node = Node.of(rank, world_size, self.ranks_per_node)
        self.stats = Stats()
        self._memory: MemoryState = {kind: {} for kind in STATE_KINDS}
        self._rounds: dict[str, int] = {}
        # Whose state a tensor has: the spec of its last round.
        self._specs: dict[str, str] = {}
        self._choices: dict[tuple[str, tuple[int, ...]], Resolution] = {}
        # What does not change from step to step, until a policy says so.
        self._lasting: dict[tuple[str, tuple[int, ...]], Resolved] = {}
        self._aggregators: dict[tuple[str, str], CachedAggregator] = {}
        self._dense = Dense()
        self._pool = _core.BufferPool()
        self._epoch: int | None = None
        self._policy = Policy() if self.config.compress.policy == "auto" else None

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins, counted from 0; all ranks must, before its first step.

        Only schedules, and specs that follow one another, need it where they count epochs.
        """
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}; it must be at least 0")
        self._epoch = epoch

    def aggregator(self, name: str, shape: tuple[int, ...]) -> Aggregator:
        """The aggregator of a tensor in its next round; tensors of equal specs share one.

        A tensor of a shape that its spec's aggregator does not take travels dense.

        Raises:
            ConfigError: a schedule counts epochs, and `set_epoch` was never called.
        """
        return self._resolved(name, shape).aggregator

    def _resolved(self, name: str, shape: tuple[int, ...]) -> Resolved:
        """What averages a tensor in its next round."""
        resolved = self._lasting.get((name, shape))
        if resolved is None:
            choice = self._choices.get((name, shape))
            if choice is None:
                choice = self._choices[name, shape] = self.config.resolve(name, shape)
            step = self._rounds.get(name, 0)
            resolved = self._taken_at(choice, shape, step)
            if not (choice.schedule.switches or resolved.phase.use.scheduled) and (
                self._policy is None or step >= resolved.aggregator.start_step
            ):
                self._lasting[name, shape] = resolved
        return resolved

    def _taken_at(self, choice: Resolution, shape: tuple[int, ...], step: int) -> Resolved:
        if choice.schedule.by_epochs:
            self._check_epoch(choice.schedule)
        phase = choice.schedule.at(step, self._epoch or 0)
        spec = phase.use
        found = self._made(spec, phase.exchange or choice.exchange, step)
        if not found.takes(shape):
            return Resolved(phase, _DENSE, self._dense)
        if (
            self._policy is None
            or isinstance(found, Dense | DenseMomentum)
            or step < found.start_step
        ):
            return Resolved(phase, spec, found)
        last = spec.at(_END, _END) if spec.scheduled else spec
        key = last if spec.at(step, self._epoch or 0) == last else spec
        group = PolicyGroup.of(key, phase.exchange or choice.exchange, math.prod(shape))
        chosen = self._policy.choice(group)
        if chosen == COMPRESSED:
            return Resolved(phase, spec, found, group)
        others = alternatives(spec)
        instead = others.get(chosen, others[DENSE])
        return Resolved(phase, instead, self._made(instead, "auto", step), group)

    @property
    def measures(self) -> bool:
        """Whether a policy measures, for which it takes averages into its own hands."""
        return self._policy is not None

    @property
    def varies(self) -> bool:
        """Whether another step may want other `buckets`."""
        return self.measures or self.config.switches

    @property
    def compares(self) -> bool:
        """Whether averages are compared with exact ones, so that rounds have one more phase."""
        return self.stats.profile is not None and self.stats.profile.error

    def begin_step(
        self, tensors: Mapping[str, tuple[int, ...]], ended: float, now: float
    ) -> Generator[Request, Any, tuple[Decision, ...]]:
        """Say that a step begins, before any of its gradients is averaged.

        Only the policy ``auto`` needs it; nothing travels with another one, and in a pipeline that
        is never told, everything is compressed.

        Args:
            tensors: all that take part, by name, with their shapes.
            ended: when the last average of the step before was there, in seconds.
            now: by the same clock.

        Returns:
            A round that returns what the policy decided now.
        """
        if self._policy is None:
            return ()
        before = set(self._policy.decisions)
        idle = self._policy.idle
        groups = (self._resolved(name, shape).group for name, shape in tensors.items())
        yield from self._policy.begin_step([one for one in groups if one is not None], ended, now)
        if not (idle and self._policy.idle):
            self._lasting.clear()
        self.stats.decisions = tuple(self._policy.decisions.values())
        return tuple(one for one in self.stats.decisions if one.group not in before)

    def measured(self, name: str, shape: tuple[int, ...]) -> PolicyGroup | None:
        """The group of a tensor, if the time of its exchange is wanted in this step; see `record`.

        Then the groups must be averaged one after the other, with nothing else under way.
        """
        if self._policy is None or not self._policy.measured:
            return None
        group = self._resolved(name, shape).group
        return group if group in self._policy.measured else None

    def record(self, group: PolicyGroup, seconds: float) -> None:
        """How long averaging the tensors of a group has resolved in this step."""
        assert self._policy is not None  # as `measured` says
        self._policy.record(group, seconds)

    def decide_again(self) -> None:
        """Forget what the policy ``auto`` has decided, and measure anew; on all ranks at once."""
        if self._policy is not None:
            self._policy.restart()
            self._lasting.clear()
            self.stats.decisions = ()

    def _check_epoch(self, what: object) -> None:
        if self._epoch is None:
            raise ConfigError(
                f"'{what}' changes with the epoch, which nobody tells: call set_epoch(epoch) when "
                "an epoch begins, or give the schedule in steps"
            )

    def _made(self, spec: Spec, exchange: str, step: int) -> Aggregator:
        """The aggregator of a spec; of one with schedules, that of a step."""
        epoch = self._epoch or 0
        made = self._aggregators.get((spec.canonical, exchange))
        if made is not None and (not spec.scheduled or (made.step, made.epoch) == (step, epoch)):
            return made.aggregator
        if spec.by_epochs:
            self._check_epoch(spec)
        now = spec.at(step, epoch)
        if made is not None and made.canonical == now.canonical:
            aggregator = made.aggregator
        else:
            context = Context(
                self._memory, self.config.seed, self.rank, self.world_size, self.ranks_per_node
            )
            aggregator = make_aggregator(now, context, exchange)
        self._aggregators[spec.canonical, exchange] = CachedAggregator(
            now.canonical, step, epoch, aggregator
        )
        return aggregator

    def sends_dense(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether the tensor travels as it is, so that an engine may send it in its own dtype.

        Not so where a spec before this one has left a part unsent, which goes along.
        """
        unsent = name in self._memory["residual"]
        return not unsent and isinstance(self.aggregator(name, shape), Dense)

    def round(self, name: str, grad: FloatArray, dense_bytes: int | None = None) -> Round:
        """Start averaging one tensor; the requests it yields are counted in ``stats``.

        Args:
            name: unique, and the same on every rank.
            grad: C-contiguous float32, of the same shape on every rank.
            dense_bytes: the gradient's uncompressed size, where that is not ``grad.nbytes``.
        """
        self.stats.dense_bytes += grad.nbytes if dense_bytes is None else dense_bytes
        key = TensorKey(name, grad.shape, grad.size)
        resolved = self._resolved(name, grad.shape)
        whole = self._hand_over(name, resolved, grad)
        one = resolved.aggregator.round(whole, key, self._next_step(name))
        return self._counted(name, [grad], one)

    def buckets(self, tensors: Mapping[str, tuple[int, ...]]) -> list[tuple[str, ...]]:
        """Which tensors `bucket_round` should average together.

        Args:
            tensors: names and shapes, in the order of the model.

        Returns:
            Names, last tensors first, as backward passes go: tensors whose aggregators share a
            bucket in buckets of about ``bucket_bytes`` of the configuration, all others by
            themselves.
        """
        groups: dict[Hashable, list[tuple[str, int]]] = {}
        others = []
        for name, shape in reversed(list(tensors.items())):
            aggregator = self.aggregator(name, shape)
            if not isinstance(aggregator, BucketAggregator):
                others.append((name,))
                continue
            groups.setdefault(aggregator.bucket, []).append((name, 4 * math.prod(shape)))
        limit = self.config.compress.bucket_bytes
        return [*(one for group in groups.values() for one in make_buckets(group, limit)), *others]

    def bucket_round(
        self,
        label: str,
        grads: Mapping[str, FloatArray],
        dense_bytes: int | None = None,
        overwrite: bool = False,
    ) -> BucketRound:
        """Start averaging the tensors of a bucket; see `round`.

        Each phase is one request for all tensors. The averages are those that `round` gives, but
        for codecs that ``share``, which look at all tensors of a bucket, and with the exchange
        ``sra``, which cuts a bucket into chunks.

        Args:
            label: the requests' name, or its beginning: unique, and the same on every rank. A
                tensor that is alone goes by its own name.
            grads: by name, in an order that is the same on every rank.
            dense_bytes: of all gradients, where that is not their ``nbytes``.
            overwrite: averages may be written where the gradients are; not all aggregators do so.
                Else they get memory that earlier averages had, once nothing refers to these.
        """
        if len(grads) == 1:
            ((name, grad),) = grads.items()
            if not isinstance(self.aggregator(name, grad.shape), BucketAggregator):
                return _listed(self.round(name, grad, dense_bytes))
            label = name
        members: list[Member] = []
        for name, grad in grads.items():
            resolved = self._resolved(name, grad.shape)
            aggregator = resolved.aggregator
            if not isinstance(aggregator, BucketAggregator) or (
                members and aggregator.bucket != members[0].aggregator.bucket
            ):
                raise ValueError(f"'{name}' does not belong in this bucket: average it by itself")
            key = TensorKey(name, grad.shape, grad.size)
            whole = self._hand_over(name, resolved, grad)
            room = grad.reshape(-1) if overwrite else self._pool.get(grad.size)
            members.append(Member(aggregator, whole, key, self._next_step(name), room))
        if dense_bytes is None:
            dense_bytes = sum(grad.nbytes for grad in grads.values())
        self.stats.dense_bytes += dense_bytes
        one = members[0].aggregator.bucket_round(label, members)
        return self._counted(label, list(grads.values()), one)

    def count_dense(self, name: str, nbytes: int) -> None:
        """Count a tensor that an engine sent by itself because `sends_dense`."""
        if self._specs.get(name) != _DENSE.canonical:
            self._forget(name, STATE_KINDS)
            self._specs[name] = _DENSE.canonical
        self._next_step(name)
        self.stats.dense_bytes += nbytes
        self.stats.count("allreduce", nbytes)

    def _hand_over(self, name: str, resolved: Resolved, grad: FloatArray) -> FloatArray:
        """Where the spec of a tensor's last round was another one, give its state to this one.

        Returns the gradient, with what the last spec left unsent if this one keeps no residual.
        """
        before = self._specs.get(name)
        now = resolved.spec
        if before == now.canonical:
            return grad
        self._specs[name] = now.canonical
        if before is None:
            return grad
        old, new = state_of(parse(before)), state_of(now)
        # Its own phase's state is also handed over where a tensor goes dense and comes back.
        if resolved.phase.state == "drop" and before != resolved.phase.use.canonical:
            new = {}
        elif "residual" not in new:
            unsent = self._memory["residual"].get(name)
            if unsent is not None:
                grad = grad + unsent.reshape(grad.shape)
        self._forget(
            name, [kind for kind in STATE_KINDS if kind not in new or new[kind] != old.get(kind)]
        )
        return grad

    def _forget(self, name: str, kinds: Iterable[str]) -> None:
        for kind in kinds:
            self._memory[kind].pop(name, None)

    def _next_step(self, name: str) -> int:
        """How often the tensor was averaged before; counts this time."""
        step = self._rounds.get(name, 0)
        self._rounds[name] = step + 1
        self.stats.steps = max(self.stats.steps, step + 1)
        return step

    def _counted(
        self, label: str, grads: Sequence[FloatArray], inner: Generator[Request, Any, _Result]
    ) -> Generator[Request, Any, _Result]:
        profile = self.stats.profile
        send = inner.send if profile is None else partial(profile.resume, label, inner)
        exact = None
        if profile is not None and profile.error:
            exact = yield from profile.exact(label, grads)
        try:
            request = send(None)
            while True:
                if request.group != "leaders" or self.node.leads:
                    inside = "node " if request.group == "node" else ""
                    self.stats.count(f"{inside}{request.kind}", request.nbytes)
                    if profile is not None:
                        profile.requested(label, request)
                request = send((yield request))
        except StopIteration as stop:
            result: _Result = stop.value
            if profile is not None and exact is not None:
                profile.compare(label, exact, result)
            return result

    def state_dict(self) -> State:
        """This rank's state: numbers, strings, and one float32 array per tensor with a memory.

        Keys: ``version``, ``rank``, ``world_size``, ``ranks_per_node`` (1 without ``two_level``,
        with which a tensor's arrays are those of the node, the same on all of its ranks),
        ``rounds`` (averages so far, by tensor name), ``specs`` (that of the last one, by tensor
        name), ``decisions`` (of the policy ``auto``, see `gradcomp.runtime.policy.Decision`), and the
        arrays of memories and algorithms,
        each by tensor name: ``residual`` (error feedback; DGC's velocity), ``momentum`` (signum,
        momentum_correction), ``powersgd_p`` and ``powersgd_q`` (PowerSGD's factors of rows and
        columns, one vector after the other), ``basis`` (what codecs have learned of averages, see
        `gradcomp.Codec.learn`), ``carried`` (what encoders begin from, see `gradcomp.ToEncode`).
        The arrays are copies.
        """
        return {
            "version": STATE_VERSION,
            "rank": self.rank,
            "world_size": self.world_size,
            "ranks_per_node": self.ranks_per_node,
            "rounds": dict(self._rounds),
            "specs": dict(self._specs),
            "decisions": [one.to_state() for one in self._policy.decisions.values()]
            if self._policy is not None
            else [],
            **{kind: _copies(arrays) for kind, arrays in self._memory.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take up a saved state.

        Args:
            state: this rank's own state, for a bit-exact resume at the same world size (and nodes);
                or the states of all ranks, in any order, for any world size. At another one every
                rank takes the mean of the saved arrays, which preserves their mean over ranks: of
                residuals, the gradient that is still to be applied. Factors are equal on all ranks
                and stay what they are.

        Raises:
            StateError: the state is another rank's, incomplete, or of an unknown version. The
                residuals of ranks are unrelated, so one rank's state must never be loaded on all.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        if not states:
            raise StateError("an empty list of compressor states; give those of all ranks")
        for one in states:
            _check_state(one)
        own = {int(one["rank"]): one for one in states}
        for what, key in (("world sizes", "world_size"), ("ranks per node", "ranks_per_node")):
            sizes = sorted({int(one[key]) for one in states})
            if len(sizes) > 1:
                raise StateError(
                    f"compressor states of different {what}: {', '.join(map(str, sizes))}; give "
                    "those of all ranks of one run"
                )
        saved_size = int(states[0]["world_size"])
        saved_nodes = int(states[0]["ranks_per_node"])
        if isinstance(state, Mapping):
            if saved_size != self.world_size or self.rank not in own:
                raise StateError(
                    f"this is the compressor state of rank {state['rank']} of {saved_size}, and "
                    f"this is rank {self.rank} of {self.world_size}: load each rank's own state, "
                    f"or give load_state_dict the list of all {saved_size} ranks' states"
                )
            if saved_nodes != self.ranks_per_node:
                raise StateError(
                    f"this compressor state was saved with {saved_nodes} ranks in a node, and here "
                    f"{self.ranks_per_node} share one: give load_state_dict the list of all "
                    f"{saved_size} ranks' states"
                )
        elif sorted(own) != list(range(saved_size)) or len(own) != len(states):
            raise StateError(
                f"a list of compressor states must hold each of the {saved_size} ranks once; "
                f"it holds ranks {sorted(int(one['rank']) for one in states)}"
            )
        if (saved_size, saved_nodes) == (self.world_size, self.ranks_per_node):
            memory = {kind: _copies(own[self.rank][kind]) for kind in STATE_KINDS}
        else:
            ranks = [own[rank] for rank in range(saved_size)]
            memory = {
                kind: (_same if kind in REPLICATED_KINDS else _mean)(
                    [one[kind] for one in ranks], kind
                )
                for kind in STATE_KINDS
                if kind != "carried"  # of one rank's gradients, and soon found again
            }
        rounds: dict[str, int] = {}
        resolved: dict[str, str] = {}
        for one in states:
            for name, count in one["rounds"].items():
                rounds[name] = max(rounds.get(name, 0), int(count))
            resolved.update(one["specs"])
        # The aggregators' memories hold these very dicts.
        for kind, arrays in self._memory.items():
            arrays.clear()
            arrays.update(memory.get(kind, {}))
        self._rounds = rounds
        self._specs = resolved
        if self._policy is not None:
            # Figures of another number of ranks say nothing.
            same = saved_size == self.world_size
            kept = own[self.rank]["decisions"] if same else []
            self._lasting.clear()
            self._policy.restart(Decision.from_state(one) for one in kept)
            self.stats.decisions = tuple(self._policy.decisions.values())


_DENSE = parse("identity")

# A step or an epoch in which all schedules have come to their ends.
_END = 2**62


class Resolved(NamedTuple):
    """What averages a tensor in its next round.

    ``spec`` is that of the phase, or what the tensor takes instead; ``group`` is that of the
    policy, for tensors about which it decides.
    """

    phase: SpecPhase
    spec: Spec
    aggregator: Aggregator
    group: PolicyGroup | None = None


class CachedAggregator(NamedTuple):
    """The aggregator of a spec, as it is at a step of an epoch."""

    canonical: str
    step: int
    epoch: int
    aggregator: Aggregator


def _listed(one: Round) -> BucketRound:
    return [(yield from one)]


def _check_state(state: Mapping[str, Any]) -> None:
    keys = {"version", "rank", "world_size", "ranks_per_node", "rounds", "specs", "decisions"}
    missing = {*keys, *STATE_KINDS} - set(state)
    if missing:
        raise StateError(f"not a compressor state: it lacks {', '.join(sorted(missing))}")
    if state["version"] != STATE_VERSION:
        raise StateError(
            f"compressor state of version {state['version']}; this gradcomp reads {STATE_VERSION}"
        )


def _copies(arrays: Mapping[str, Any]) -> Arrays:
    return {name: np.array(value, dtype=np.float32).reshape(-1) for name, value in arrays.items()}


def _same(of_ranks: Sequence[Mapping[str, Any]], kind: str) -> Arrays:
    """What all ranks have."""
    first, *others = (_copies(arrays) for arrays in of_ranks)
    for other in others:
        for name in sorted({*first, *other}):
            if name not in first or name not in other or not _equal(first[name], other[name]):
                raise StateError(
                    f"the ranks' {kind} of '{name}' differ, and one run has the same on all ranks: "
                    "these are states of different runs or steps"
                )
    return first


def _equal(a: FloatArray, b: FloatArray) -> bool:
    return a.tobytes() == b.tobytes()


def _mean(of_ranks: Sequence[Mapping[str, Any]], kind: str) -> Arrays:
    """The mean over ranks, summed in rank order; a rank without an array counts as zero."""
    totals: Arrays = {}
    for arrays in of_ranks:
        for name, value in _copies(arrays).items():
            if name not in totals:
                totals[name] = value
            elif totals[name].size == value.size:
                totals[name] += value
            else:
                raise StateError(
                    f"the ranks' {kind}s of '{name}' have {totals[name].size} and {value.size} "
                    "elements: these are states of different models"
                )
    for value in totals.values():
        value /= np.float32(len(of_ranks))
    return totals
