"""One rank's compression: resolves tensors, starts their rounds, keeps state and statistics."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.config.schema import Config
from gradcomp.exchange.patterns.base import Context, Member
from gradcomp.exchange.rounds import BucketRound, Request, Round
from gradcomp.runtime.buckets import make_buckets
from gradcomp.runtime.policy import Decision, Policy, PolicyGroup
from gradcomp.runtime.resolve import Resolved, Resolver
from gradcomp.runtime.state import RankState, State
from gradcomp.runtime.stats import Stats

__all__ = ["Pipeline"]

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
        self.stats = Stats()
        self._state = RankState(rank, world_size, self.ranks_per_node)
        self.node = self._state.node
        self._policy = Policy() if compress.policy == "auto" else None
        context = Context(
            self._state.arrays, self.config.seed, rank, world_size, self.ranks_per_node
        )
        self._resolver = Resolver(self.config, context, self._policy)
        self._pool = _core.BufferPool()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0; all ranks must, before its first step.

        Only schedules that count epochs need it, in a parameter or between specs.
        """
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}; it must be at least 0")
        self._resolver.set_epoch(epoch)

    # Which aggregator averages a tensor.

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
        """Whether the tensor travels as it is, so that an engine may send it in its own dtype.

        A residual that an earlier spec has left must go along; then the tensor does not.
        """
        return resolved.dense and not self._state.has_residual(resolved.key.name)

    def buckets(self, resolved: Mapping[str, Resolved]) -> list[tuple[str, ...]]:
        """The tensors that `bucket_round` should average together.

        Args:
            resolved: of all tensors, in the order of the model.

        Returns:
            Names, last tensors first, as backward passes go: tensors whose aggregators share a
            bucket in buckets of about ``bucket_bytes`` of the configuration, all others by
            themselves.
        """
        groups: dict[Hashable, list[tuple[str, int]]] = {}
        others = []
        for name, one in reversed(list(resolved.items())):
            aggregator = one.bucket_aggregator
            if aggregator is None:
                others.append((name,))
            else:
                groups.setdefault(aggregator.bucket, []).append((name, 4 * one.key.numel))
        limit = self.config.compress.bucket_bytes
        return [*(one for group in groups.values() for one in make_buckets(group, limit)), *others]

    # Rounds.

    def round(
        self,
        name: str,
        grad: FloatArray,
        dense_bytes: int | None = None,
        resolved: Resolved | None = None,
    ) -> Round:
        """Start averaging one tensor; the requests it yields are counted in ``stats``.

        Args:
            name: unique, and the same on every rank.
            grad: C-contiguous float32, of the same shape on every rank.
            dense_bytes: the gradient's uncompressed size, where that is not ``grad.nbytes``.
            resolved: the tensor's decision for this round; None to resolve it here.
        """
        if resolved is None:
            resolved = self.resolve(name, grad.shape)
        self.stats.dense_bytes += grad.nbytes if dense_bytes is None else dense_bytes
        whole = self._state.hand_over(resolved, grad)
        one = resolved.aggregator.round(whole, resolved.key, self._count(name))
        return self._counted(name, [grad], one)

    def bucket_round(
        self,
        label: str,
        grads: Mapping[str, FloatArray],
        dense_bytes: int | None = None,
        overwrite: bool = False,
        resolved: Mapping[str, Resolved] | None = None,
    ) -> BucketRound:
        """Start averaging the tensors of a bucket; see `round`.

        Each phase is one request for all tensors. The averages equal those of `round`, except for
        codecs that ``share``, which look at all tensors of a bucket, and for the exchange ``sra``,
        which cuts a bucket into chunks.

        Args:
            label: the requests' name, or its beginning: unique, and the same on every rank. A
                tensor that is alone goes by its own name.
            grads: by name, in an order that is the same on every rank.
            dense_bytes: of all gradients, where that is not their ``nbytes``.
            overwrite: averages may be written where the gradients are; not all aggregators do so.
                Otherwise they get memory of earlier averages, once nothing refers to these.
            resolved: the tensors' decisions for this round; None to resolve them here.
        """
        if resolved is None:
            resolved = self.resolve_all({name: grad.shape for name, grad in grads.items()})
        if len(grads) == 1:
            ((label, grad),) = grads.items()
            if resolved[label].bucket_aggregator is None:
                return _listed(self.round(label, grad, dense_bytes, resolved[label]))
        members: list[Member] = []
        for name, grad in grads.items():
            one = resolved[name]
            aggregator = one.bucket_aggregator
            if aggregator is None or (
                members and aggregator.bucket != members[0].aggregator.bucket
            ):
                raise ValueError(f"'{name}' does not belong in this bucket: average it by itself")
            whole = self._state.hand_over(one, grad)
            out = grad.reshape(-1) if overwrite else self._pool.get(grad.size)
            members.append(Member(aggregator, whole, one.key, self._count(name), out))
        if dense_bytes is None:
            dense_bytes = sum(grad.nbytes for grad in grads.values())
        self.stats.dense_bytes += dense_bytes
        bucket = members[0].aggregator.bucket_round(label, members)
        return self._counted(label, list(grads.values()), bucket)

    def count_dense(self, name: str, nbytes: int) -> None:
        """Count a tensor that an engine sent by itself because `sends_dense`."""
        self._state.go_dense(name)
        self._count(name)
        self.stats.dense_bytes += nbytes
        self.stats.count("allreduce", nbytes)

    def _count(self, name: str) -> int:
        """Count one more average of a tensor; returns how many came before."""
        step = self._state.count(name)
        self.stats.steps = max(self.stats.steps, step + 1)
        return step

    def _counted(
        self, label: str, grads: Sequence[FloatArray], inner: Generator[Request, Any, _Result]
    ) -> Generator[Request, Any, _Result]:
        """The round, with its requests counted and its phases profiled."""
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

    @property
    def compares(self) -> bool:
        """Whether averages are compared with exact ones, so that rounds have one more phase."""
        return self.stats.profile is not None and self.stats.profile.error

    # The policy ``auto``.

    @property
    def measures(self) -> bool:
        """Whether a policy measures, for which it takes averages into its own hands."""
        return self._policy is not None

    @property
    def varies(self) -> bool:
        """Whether another step may want other `buckets`."""
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

        Only the policy ``auto`` needs it; nothing travels with another one, and in a pipeline that
        is never told, everything is compressed. Afterwards tensors must be resolved anew.

        Args:
            resolved: of all tensors that take part.
            ended: when the last average of the step before was there, in seconds.
            now: by the same clock.

        Returns:
            A round that returns the decisions of this step.
        """
        if self._policy is None:
            return ()
        before = set(self._policy.decisions)
        idle = self._policy.idle
        groups = [one.group for one in resolved if one.group is not None]
        yield from self._policy.begin_step(groups, ended, now)
        if not (idle and self._policy.idle):
            self._resolver.forget()
        self.stats.decisions = tuple(self._policy.decisions.values())
        return tuple(one for one in self.stats.decisions if one.group not in before)

    def record(self, group: PolicyGroup, seconds: float) -> None:
        """Report how long averaging the tensors of a group has taken in this step."""
        assert self._policy is not None  # as `measured` says
        self._policy.record(group, seconds)

    def decide_again(self) -> None:
        """Forget the decisions of the policy ``auto``, and measure anew; on all ranks at once."""
        if self._policy is not None:
            self._policy.restart()
            self._resolver.forget()
            self.stats.decisions = ()

    # Checkpoints.

    def state_dict(self) -> State:
        """This rank's state: numbers, strings, and one float32 array per tensor with a memory.

        Keys: ``version``, ``rank``, ``world_size``, ``ranks_per_node`` (1 without ``two_level``,
        with which a tensor's arrays belong to the node, the same on all of its ranks), ``rounds``
        (averages so far, by tensor name), ``specs`` (of the last round, by tensor name),
        ``decisions`` (of the policy ``auto``, see `gradcomp.runtime.policy.Decision`), and the
        arrays of memories, algorithms and codecs, each by tensor name: ``residual`` (error
        feedback; DGC's velocity), ``momentum`` (signum, momentum_correction), ``powersgd_p`` and
        ``powersgd_q`` (PowerSGD's factors of rows and columns, one vector after the other),
        ``basis`` (learned from averages, see `gradcomp.Codec.learn`), ``carried`` (starting points
        of encoders, see `gradcomp.ToEncode`). The arrays are copies.
        """
        decisions = [] if self._policy is None else list(self._policy.decisions.values())
        return {**self._state.to_dict(), "decisions": [one.to_state() for one in decisions]}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take up a saved state.

        Args:
            state: this rank's own state, for a bit-exact resume at the same world size (and nodes);
                or the states of all ranks, in any order, for any world size. At another one every
                rank takes the mean of the saved arrays, which preserves their mean over ranks: of
                residuals, the gradient that is still to be applied. Factors are equal on all ranks
                and stay as they are.

        Raises:
            StateError: the state is another rank's, incomplete, or of an unknown version. The
                residuals of ranks are unrelated, so one rank's state must never be loaded on all.
        """
        decisions = self._state.load(state)
        if self._policy is not None:
            self._resolver.forget()
            self._policy.restart(Decision.from_state(one) for one in decisions)
            self.stats.decisions = tuple(self._policy.decisions.values())


def _listed(one: Round) -> BucketRound:
    return [(yield from one)]
