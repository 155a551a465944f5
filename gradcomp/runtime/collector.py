"""Collects the gradients of a step: decides how each travels, and starts the round of each bucket."""

from __future__ import annotations

import time
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.errors import ProtocolError
from gradcomp.exchange.engine import Driver, came_twice
from gradcomp.exchange.rounds import AllReduce, BucketRound, Ready, Request
from gradcomp.runtime.agree.replicas import Parameters, ReplicaDigests
from gradcomp.runtime.agree.sent_text import SentText
from gradcomp.runtime.agree.step_check import call_text, check_step, gradients_text
from gradcomp.runtime.pipeline import Pipeline
from gradcomp.runtime.policy.decision import Decision, PolicyGroup
from gradcomp.runtime.resolve import Resolved
from gradcomp.runtime.start_report import StartReport

__all__ = ["Collector", "Route"]


class Route(Enum):
    """How a gradient travels in a step."""

    DENSE = "dense"
    """The engine all-reduces the gradient itself in its own dtype; call `Pipeline.count_dense`."""

    LINEAR = "linear"
    """`Pipeline.round` makes a single all-reduce, which the engine may fuse with others."""

    COLLECTED = "collected"
    """`Collector.add` averages the gradient together with its bucket."""


@dataclass
class _Waiting:
    grads: dict[str, FloatArray] = field(default_factory=dict)
    dense_bytes: int = 0
    arriving: list[Callable[[], None]] = field(default_factory=list)


class Collector:
    """Starts the round of a bucket when the last of its gradients has arrived.

    Args:
        driver: runs the rounds.
        pipeline: this rank's compression.
        tensors: names and shapes of all parameters, in the order of the model: the same on every
            rank.
        clock: returns seconds, for policies that measure.
        overwrite: averages may overwrite the gradients.
        parameters: for ``check_replicas_every``; None if the adapter cannot read parameters.
        blocking: the engine runs requests in groups, so a step's comparison is finished before
            other requests start.
    """

    def __init__(
        self,
        driver: Driver,
        pipeline: Pipeline,
        tensors: Mapping[str, tuple[int, ...]],
        clock: Callable[[], float] = time.perf_counter,
        overwrite: bool = False,
        parameters: Parameters | None = None,
        blocking: bool = False,
    ) -> None:
        self._driver = driver
        self._overwrite = overwrite
        self._clock = clock
        self._ended = 0.0
        self._pipeline = pipeline
        self._tensors = tensors
        self._resolved: dict[str, Resolved] = {}
        self._settled: dict[str, Resolved] | None = None
        self._settled_at: tuple[int, int] | None = None
        self._scheduled = False
        self._added = False  # tensors with other decisions than those of all tensors
        self._routes: tuple[int, int] | None = None
        self._resolve_all()
        self._group()
        self._waiting: dict[str, _Waiting] = {}  # by a bucket's first name
        self._measured: dict[PolicyGroup, dict[str, _Waiting]] = {}
        self._of_this_step: set[str] = set()
        self._replicas = ReplicaDigests(pipeline.config.check_replicas_every, parameters)
        self._blocking = blocking
        self._comparing: SentText | None = None
        self._report = StartReport(pipeline)
        self._report.begin(self._resolved)

    def _group(self) -> None:
        self._buckets = self._pipeline.buckets(self._resolved)
        self._bucket_of = {name: names for names in self._buckets for name in names}
        self._places = {names[0]: place for place, names in enumerate(self._buckets)}
        self._whole: set[str] = set()  # buckets with tensors that travel together in every step

    def begin_step(self, names: Collection[str] | None = None) -> tuple[Decision, ...]:
        """Begin a step, before any of its gradients is averaged; every rank must call it.

        Args:
            names: the tensors that have gradients, if they must be the same on all ranks, as for engines
                that match gradients by their order; None otherwise.

        Returns:
            The new decisions of the policy ``auto``.

        Raises:
            ProtocolError: the ranks' states differ where they must be equal; see `check`.
        """
        pipeline = self._pipeline
        pipeline.last_step.begin()
        pipeline.stats.begin_step()
        self._report.end_step()
        self._begin_check(None if names is None else gradients_text(names, self._tensors))
        decisions: tuple[Decision, ...] = ()
        policy = pipeline.policy
        if policy.measures:
            self._resolve_all()
            before = self._resolved.values()
            groups = [decided.group for decided in before if decided.group is not None]
            decisions = self._driver.run(policy.begin_step(groups, self._ended, self._clock()))
            pipeline.stats.decisions = policy.decisions
        if self._resolve_all() and (policy.measures or pipeline.config.switches):
            self._group()
        self._report.begin_step(self._resolved)
        self._routes = self._find_routes()
        return decisions

    def _resolve_all(self) -> bool:
        """Decide about all tensors; returns False if the decisions of an earlier step still hold."""
        again = self._settled is None or self._settled_at != self._versions()
        if again:
            self._resolved = self._pipeline.resolve_all(self._tensors)
            settled = all(resolved.settled for resolved in self._resolved.values())
            self._scheduled = not all(resolved.lasting for resolved in self._resolved.values())
            # A copy, as `add` puts further tensors into the other one.
            self._settled = (
                self._resolved.copy() if settled and self._pipeline.policy.idle else None
            )
            self._settled_at = self._versions()
        elif self._added:
            assert self._settled is not None  # see above
            self._resolved = self._settled.copy()
        self._added = False
        return again

    def _versions(self) -> tuple[int, int]:
        """Decisions hold as long as the policy's do, and schedules do not begin again with an earlier state."""
        pipeline = self._pipeline
        return pipeline.resolver.forgets, pipeline.last_step.changes if self._scheduled else 0

    @property
    def routes(self) -> tuple[int, int] | None:
        """Equal in two steps if `resolve`, `route` and `Pipeline.on_device` say the same in both of each tensor.

        None: they may say something else in this step than in another one.
        """
        return self._routes

    def _find_routes(self) -> tuple[int, int] | None:
        if self._settled is None or self._pipeline.stats.compares:
            return None
        last = self._pipeline.last_step
        now = self._pipeline.resolver.forgets, last.changes
        return now if self._routes == now or last.begins_all(self._settled.values()) else None

    def _begin_check(self, gradients: str | None) -> None:
        """Send this rank's text of the step; its state is compared before anything else is sent."""
        comparison = self._pipeline.comparison
        if not comparison.needed:
            return
        self._comparing = self._send(comparison.text(self._replicas.take(), gradients))
        self._pipeline.stats.count("check", self._comparing.nbytes)
        if comparison.fresh or self._blocking:
            self.check()
        self._replicas.begin(comparison.next_step)

    def meet(self, call: str) -> None:
        """Meet all ranks in a call between two steps, such as "save()".

        It goes as the comparison of a step, so a rank that begins a step instead is found at once.

        Raises:
            ProtocolError: another rank is in another call or begins a step, where it raises this, too;
                or it does not answer.
        """
        try:
            texts = self._send(call_text(call)).differing()
        except ProtocolError as error:
            raise ProtocolError(
                f"every rank must call {call}, between the same two steps: {error}"
            ) from error
        if texts is not None:
            check_step(texts, self._pipeline.world_size)

    def _send(self, text: ByteArray) -> SentText:
        return SentText(self._driver, self._pipeline.world_size, text)

    def check(self) -> None:
        """Compare the ranks' progress in this step, once, before any of its averages is used.

        `finish` calls it. An adapter calls it for gradients that the engine averages.

        Raises:
            ProtocolError: the ranks are at different steps or epochs, or their states or models
                differ; all ranks raise it.
        """
        if self._comparing is not None:
            comparing, self._comparing = self._comparing, None
            texts = comparing.differing()
            try:
                self._pipeline.comparison.check(texts)
            except ProtocolError as error:
                self._pipeline.stats.count_fault(error)
                raise
        self._replicas.settle()

    def resolve(self, name: str, shape: tuple[int, ...], default_rules: bool = True) -> Resolved:
        """The decision about a gradient of this step: resolved once, when the step began.

        A tensor that is not among the collector's, or has another shape, is resolved now.

        Args:
            default_rules: see `Config.resolve`; of a tensor that is resolved now.
        """
        resolved = self._resolved.get(name)
        if resolved is None or resolved.key.shape != shape:
            resolved = self._pipeline.resolve(name, shape, default_rules)
            self._report.unlisted(resolved)
        return resolved

    def route(self, resolved: Resolved, *, sums_dtype: bool, fuses: bool = False) -> Route:
        """How a gradient travels in this step; the same rule for all adapters.

        A tensor without a name ("") cannot be collected, so an engine must fuse it.

        Args:
            sums_dtype: the engine can all-reduce the gradient in its own dtype.
            fuses: the engine runs single all-reduces of rounds itself (`Aggregator.linear`).
        """
        pipeline = self._pipeline
        named = resolved.key.name != ""
        if named and resolved.group in pipeline.policy.measured:
            return Route.COLLECTED
        if sums_dtype and (
            pipeline.sends_dense(resolved) or (named and pipeline.waits_dense(resolved))
        ):
            return Route.DENSE
        if (
            fuses
            and resolved.aggregator.linear
            and not resolved.cut
            and not (named and pipeline.stats.compares)
        ):
            return Route.LINEAR
        return Route.COLLECTED

    def add(
        self,
        resolved: Resolved,
        grad: FloatArray,
        dense_bytes: int,
        arrives: Callable[[], None] | None = None,
        beside: bool = False,
    ) -> None:
        """Add a gradient to its bucket. Other code must not change it before `finish`.

        Args:
            resolved: this step's decision about the tensor.
            grad: C-contiguous float32 of the tensor's shape.
            dense_bytes: the gradient's uncompressed size.
            arrives: waits for the gradient's elements, which a device is still copying to the host.
                The bucket's round then begins with `Driver.release`. None: they are on the host already.
            beside: a thread begins the bucket's round while the caller goes on, if this gradient is
                the bucket's last. The caller must call `settle` before its script can make requests
                of the engine.

        Raises:
            ProtocolError: the tensor was added in this step already.
        """
        name = resolved.key.name
        arriving = {} if arrives is None else {name: arrives}
        self.add_all({name: resolved}, [grad], {name: dense_bytes}, arriving, beside)

    def add_all(
        self,
        tensors: Mapping[str, Resolved],
        grads: Iterable[FloatArray],
        dense_bytes: Mapping[str, int],
        arrives: Mapping[str, Callable[[], None]] = MappingProxyType({}),
        beside: bool = False,
    ) -> None:
        """As `add`, of several gradients: those of ``tensors``, in their order; the rest by name."""
        again = self._of_this_step.intersection(tensors)
        if again:
            raise came_twice(min(again))
        self._of_this_step.update(tensors)
        measured = self._pipeline.policy.measured
        known, buckets = self._resolved, self._bucket_of
        bucket: tuple[str, ...] = ()
        for (name, resolved), grad in zip(tensors.items(), grads, strict=True):
            if known.get(name) is not resolved:
                known[name] = resolved
                self._added = True
            if measured and resolved.group in measured:
                bucket = ()
                waiting = self._measured.setdefault(resolved.group, {})[name] = _Waiting()
            else:
                last, bucket = bucket, buckets.get(name) or (name,)
                if bucket is not last:
                    waiting = self._waiting.setdefault(bucket[0], _Waiting())
            waiting.grads[name] = grad
            waiting.dense_bytes += dense_bytes[name]
            if name in arrives:
                waiting.arriving.append(arrives[name])
            if len(waiting.grads) == len(bucket):
                self._start(bucket, beside)
                bucket = ()

    def settle(self) -> None:
        """Wait until all rounds that begin ``beside`` have begun; raises their errors."""
        try:
            self._driver.release()
        except BaseException:
            self._forget()
            raise

    def finish(self, name: str) -> FloatArray:
        """The average of a gradient, flat float32; see `finish_all`."""
        return self.averages([name])[0]

    def averages(self, names: Collection[str]) -> list[FloatArray]:
        """As `finish`, of several gradients."""
        self.finish_all()
        self._of_this_step.difference_update(names)
        return self._driver.averages(names)

    def finish_all(self) -> None:
        """Run all rounds to their ends; every rank must have added the same gradients before."""
        try:
            self.check()
            # Incomplete buckets: some of their parameters have no gradient in this step.
            for bucket in self._buckets if self._waiting else ():
                if bucket[0] in self._waiting:
                    self._start(bucket)
            if self._measured:
                self._measure()
            self._driver.finish_all()
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        """Forget the gradients of a step that has failed."""
        self._waiting.clear()
        self._measured.clear()
        self._of_this_step.clear()

    def mean(self, name: str, value: float) -> float:
        """The mean of a number over the ranks, outside of all rounds; every rank must call it."""
        request = AllReduce(name, np.array([value], np.float64))
        self._pipeline.stats.count("allreduce", request.nbytes)
        return float(self._driver.reply(self._driver.post(request))[0])

    def end_step(self) -> None:
        """Note the time when averages are complete; the last call before the next step counts."""
        self._ended = self._clock()

    def _measure(self) -> None:
        """Average the measured groups one after the other, each after a barrier of all ranks."""
        self._driver.finish_all()
        for group, waiting in sorted(self._measured.items()):
            resolved = {name: tensor for name, tensor in self._resolved.items() if name in waiting}
            for tensor in waiting.values():
                for arrives in tensor.arriving:
                    arrives()
            self._driver.run(_barrier())
            began = self._clock()
            for bucket in self._pipeline.buckets(resolved):
                self._waiting[bucket[0]] = _Waiting(
                    {name: waiting[name].grads[name] for name in bucket},
                    sum(waiting[name].dense_bytes for name in bucket),
                )
                self._start(bucket)
            self._driver.finish_all()
            self._pipeline.policy.record(group, self._clock() - began)
        self._measured.clear()

    def _start(self, bucket: tuple[str, ...], beside: bool = False) -> None:
        waiting = self._waiting.pop(bucket[0])
        # In the bucket's order, which is the same on every rank; the order of arrival may differ.
        arrived = {name: waiting.grads[name] for name in bucket if name in waiting.grads}
        dense_bytes = waiting.dense_bytes
        for grads in self._parts(bucket, arrived):
            first = next(iter(grads))
            label = first if len(grads) == 1 else f"{first}+{len(grads) - 1}"
            begin = partial(
                self._pipeline.bucket_round,
                label,
                grads,
                dense_bytes,
                self._overwrite,
                self._resolved,
            )
            arriving = waiting.arriving
            round_ = _after(arriving, label, begin) if arriving else begin()
            dense_bytes = 0  # counted with the first part
            place = self._places.get(bucket[0], len(self._places))
            self._driver.start(label, round_, list(grads), place, beside)

    def _parts(
        self, bucket: tuple[str, ...], arrived: dict[str, FloatArray]
    ) -> Collection[dict[str, FloatArray]]:
        """The gradients of a bucket that travel together.

        A tensor with a step that lags behind may have an aggregator of another bucket in this step.
        """
        lasts = self._settled is not None and not self._added
        if lasts and bucket[0] in self._whole:
            return [arrived]
        parts: dict[Hashable, dict[str, FloatArray]] = {}
        for name, grad in arrived.items():
            aggregator = self._resolved[name].bucket_aggregator
            part = name if aggregator is None else aggregator.bucket
            parts.setdefault(part, {})[name] = grad
        if lasts and len(parts) == 1 and len(arrived) == len(bucket):
            self._whole.add(bucket[0])
        return parts.values()


def _after(
    arriving: Sequence[Callable[[], None]], label: str, begin: Callable[[], BucketRound]
) -> BucketRound:
    """A round with gradients that are still on their way to the host."""

    def wait() -> None:
        for arrives in arriving:
            arrives()

    yield Ready(label, wait)
    return (yield from begin())


def _barrier() -> Generator[Request, Any, None]:
    yield AllReduce("policy.begin", np.zeros(1, np.float32))
