"""Prediction of a training step: stages of one rank, and their overlap, as events in time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gradcomp.config.schema import Config
from gradcomp.errors import GradcompError
from gradcomp.exchange.select import pattern_between_nodes
from gradcomp.runtime.pipeline import Pipeline
from gradcomp.tools.advise.calibrate import STAGES, Speeds, config_of
from gradcomp.tools.advise.laws import Features
from gradcomp.tools.advise.wire import EngineCosts, Wire
from gradcomp.tools.step_model import Link, StepTime
from gradcomp.tools.synthetic import LATE_STEP

__all__ = ["UNCOMPRESSED", "Job", "late_pipeline", "predict"]

UNCOMPRESSED = "identity"
"""The spec of "do not compress": the engine alone, without gradcomp."""

_FORWARD = 1 / 3
"""Of a model's time; the backward pass takes twice as long."""

_FUSED_BYTES = 4 << 20
"""Sums of the hook of DDP are launched together up to this size (torch_compressors.gloo.engine)."""

_STEP_TEXT = 256
"""Bytes of a rank's text in the comparison of steps."""


@dataclass(frozen=True)
class Job:
    """The job to predict.

    Attributes:
        shapes: of all parameters, in the order of the model.
        ranks: number of ranks that average together.
        ranks_per_node: number of them that share a node and its link.
        link: of each node.
        compute: seconds of a step's forward and backward pass and of the optimizer, alone, that no core
            of the host takes.
        host_compute: further ones, on a core of the host: copies of gradients, for example.
        cores: cores for each rank, perhaps less than 1.
        costs: of the engine.
        copy_byte: seconds of a copy of one byte.

    Raises:
        GradcompError: a number is out of its range.
    """

    shapes: Mapping[str, tuple[int, ...]]
    ranks: int
    link: Link
    costs: EngineCosts
    compute: float = 0.0
    host_compute: float = 0.0
    ranks_per_node: int = 1
    cores: float = 1.0
    copy_byte: float = 0.0

    def __post_init__(self) -> None:
        if not self.shapes:
            raise GradcompError("the model has no parameters: give one that has")
        if self.ranks < 1:
            raise GradcompError(f"ranks is {self.ranks}; it must be at least 1")
        if self.ranks_per_node < 1 or self.ranks % self.ranks_per_node:
            raise GradcompError(
                f"{self.ranks} ranks do not fill nodes of {self.ranks_per_node}: give a number of "
                "nodes that divides the ranks"
            )
        for compute in (self.compute, self.host_compute):
            if not 0 <= compute < math.inf:
                raise GradcompError(
                    f"the time of a step's computation is {compute:g} s; it must be at least 0 and "
                    "finite"
                )
        if not 0 < self.cores < math.inf:
            raise GradcompError(
                f"cores is {self.cores:g}; it must be above 0: cores of a node, divided by its ranks"
            )

    @property
    def slow(self) -> float:
        """Factor by which a rank's own work takes longer, because ranks share cores."""
        return max(1.0, 1.0 / self.cores)

    @property
    def shared(self) -> float:
        """Part of the engine's work that a rank's own work waits for, and the reverse.

        With two cores each has its own: 0. With one or less they share it: 1.
        """
        return min(1.0, max(0.0, 2.0 - self.cores))

    @property
    def idle_load(self) -> float:
        """The work of an engine that has nothing to do, in a second of a rank's own work."""
        return min(1.0, self.slow * self.costs.idle_cores)


def predict(
    job: Job,
    spec: str,
    exchange: str = "auto",
    speeds: Speeds | None = None,
    config: Config | None = None,
) -> StepTime:
    """The step under a spec and an exchange, after all warm-ups.

    Args:
        speeds: of the spec and exchange; None if it is `UNCOMPRESSED`.
        config: gives all tensors of the job that spec and exchange, and has their buckets; by default
            small ones travel uncompressed.

    Raises:
        ConfigError, SpecError: the spec or exchange is wrong, or does not fit the ranks.
    """
    if config is None:
        config = config_of(spec, exchange, job.ranks_per_node)
    load = 0.0
    if job.shared:
        # The load on the fastest link counts on all links, so that a faster link never makes a step longer.
        fastest = _Timeline(replace(job, link=Link(math.inf)), config, exchange, speeds)
        fastest.run()
        load = fastest.load
    return _Timeline(job, config, exchange, speeds, load).run()


def late_pipeline(config: Config, job: Job) -> Pipeline:
    """A rank's compression after all warm-ups."""
    pipeline = Pipeline(config, 0, job.ranks, job.ranks_per_node)
    pipeline.set_epoch(LATE_STEP)
    rounds = dict.fromkeys(job.shapes, LATE_STEP)
    pipeline.load_state_dict({**pipeline.state_dict(), "rounds": rounds})
    return pipeline


@dataclass
class _Bucket:
    """A bucket of compressed gradients, and how far it has come."""

    missing: set[str]
    features: Features
    request: int = 0
    handle: int = -1


@dataclass
class _Timeline:
    """One rank's step. ``now`` is the time of the thread that trains.

    ``engine_load`` is the engine's work during a second of this thread, which also works itself.
    """

    job: Job
    config: Config
    exchange: str
    speeds: Speeds | None
    engine_load: float = 0.0
    now: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)

    def run(self) -> StepTime:
        """Predict."""
        job = self.job
        self.stages = dict.fromkeys(("model", *STAGES), 0.0)
        self.wire = Wire(job.link, job.costs, job.ranks_per_node)
        names = list(job.shapes)
        nbytes = {name: 4 * math.prod(shape) for name, shape in job.shapes.items()}
        buckets = list(self._buckets())
        of_name = {name: bucket for bucket in buckets for name in bucket.missing}
        dense: list[int] = []
        self._compute(_FORWARD * job.compute)
        if buckets and job.costs.tokens and job.ranks > 1:
            self.wire.submit(self.now, "allgather", _STEP_TEXT, job.ranks)
        backward = self._backward()
        host_byte = job.host_compute / max(sum(nbytes.values()), 1)
        copied = min(job.costs.copies, 1) * job.copy_byte
        for group in _groups(reversed(names), nbytes, job.costs):
            for name in group:
                self._compute(backward[name])
                self._work("model", host_byte * nbytes[name])
                self._work("copy", copied * nbytes[name])
                if buckets:
                    self._work("copy", job.costs.gradient)
            summed = sum(nbytes[name] for name in group if name not in of_name)
            if summed and job.ranks > 1:
                handle = self.wire.submit(self.now, "allreduce float32", summed, job.ranks)
                dense.append(handle)
            self._add(group, of_name)
            if job.costs.tokens and job.ranks > 1:
                for name in group:
                    if name in of_name:
                        dense.append(self.wire.submit(self.now, "allreduce float32", 4, job.ranks))
        self._finish(buckets)  # before Horovod's other collectives, as `horovod_compressors` does
        if job.costs.spins and not buckets:
            self.wire.spins_from, self.wire.spin = self.now, job.shared
        for handle in dense:
            self.now = max(self.now, self.wire.done(handle))
        rest = max(job.costs.copies - 1, 0) * job.copy_byte
        self._work("copy", rest * sum(nbytes.values()))
        served = self.wire.served
        stages = {
            **self.stages,
            "engine": served.engine,
            "wire": served.wire,
            "latency": served.latency,
        }
        return StepTime(self.now, stages, served.nbytes)

    def _compute(self, seconds: float) -> None:
        """The model's own time. An accelerator computes, so ranks and engine do not slow it."""
        self.now += seconds
        self.stages["model"] += seconds

    def _work(self, stage: str, seconds: float) -> None:
        """Own work of a rank, on cores that it shares with other ranks and with the engine."""
        seconds *= self.job.slow
        waits = seconds * self.job.shared * self.engine_load
        self.now += seconds + waits
        self.stages[stage] += seconds
        self.wire.served.engine += waits

    @property
    def load(self) -> float:
        """The engine's work in a second of the step's computation and own work, at most all of it.

        It spreads over that time. Where it has nothing to do, an engine takes its idle cores.
        """
        own_seconds = sum(self.stages.values())
        if self.job.ranks == 1 or not own_seconds:
            return 0.0
        busy = min(1.0, self.wire.served.work / own_seconds)
        return busy + self.job.idle_load * (1.0 - busy)

    def _backward(self) -> dict[str, float]:
        """Seconds of the backward pass before each gradient: alike for matrices and kernels."""
        shapes = self.job.shapes
        layers = [name for name, shape in shapes.items() if len(shape) > 1] or list(shapes)
        share = (1 - _FORWARD) * self.job.compute / len(layers)
        return {**dict.fromkeys(shapes, 0.0), **dict.fromkeys(layers, share)}

    def _buckets(self) -> Iterator[_Bucket]:
        """The buckets of compressed gradients, as a rank makes them."""
        job = self.job
        if self.speeds is None:
            return
        pipeline = late_pipeline(self.config, job)
        resolved = {
            name: tensor
            for name, tensor in pipeline.resolve_all(job.shapes).items()
            if not pipeline.sends_dense(tensor)
        }
        for names in pipeline.buckets(resolved):
            features = Features.of_bucket(job.shapes[name] for name in names)
            yield _Bucket(set(names), features)

    def _add(self, group: Sequence[str], of_name: Mapping[str, _Bucket]) -> None:
        """Gradients arrive: buckets that are complete start, their sums together."""
        together: list[_Bucket] = []
        for name in group:
            bucket = of_name.get(name)
            if bucket is None:
                continue
            bucket.missing.discard(name)
            if bucket.missing:
                continue
            self._advance(bucket)
            together.append(bucket)
            if self._full(together):
                self._submit(together)
                together = []
        self._submit(together)

    def _finish(self, buckets: Iterable[_Bucket]) -> None:
        """All rounds advance together, phase by phase, in the order in which they have started."""
        assert not buckets or self.speeds is not None
        pending = list(buckets)
        while pending:
            together: list[_Bucket] = []
            last = None
            for bucket in pending:
                if bucket.handle != last:  # before this rank waits
                    self._submit(together)
                    together, last = [], bucket.handle
                if self.job.ranks > 1:
                    self.now = max(self.now, self.wire.done(bucket.handle))
                bucket.request += 1
                self._advance(bucket)
                if self.speeds and bucket.request < len(self.speeds.requests):
                    together.append(bucket)
                    if self._sums(bucket) or self._full(together):
                        self._submit(together)
                        together = []
            self._submit(together)
            pending = [
                bucket
                for bucket in pending
                if self.speeds and bucket.request < len(self.speeds.requests)
            ]

    def _advance(self, bucket: _Bucket) -> None:
        """A rank's own work before the bucket's next request, or after its last one."""
        assert self.speeds is not None
        for stage, law in self.speeds.segments[bucket.request].items():
            self._work(stage, law.at(bucket.features, self._groups))

    @property
    def _groups(self) -> int:
        """The ranks of a pattern: nodes, if it works between them."""
        if pattern_between_nodes(self.exchange) is None:
            return self.job.ranks
        return self.job.ranks // self.job.ranks_per_node

    def _sums(self, bucket: _Bucket) -> bool:
        """Whether the bucket's request is fused with others by the engine of DDP."""
        assert self.speeds is not None
        kind = self.speeds.requests[bucket.request].kind
        return bool(self.job.costs.bucket_bytes) and kind.startswith("allreduce")

    def _full(self, buckets: Sequence[_Bucket]) -> bool:
        """Whether buckets of one phase fill a request."""
        if self._sums(buckets[0]):
            return sum(map(self._handed, buckets)) >= _FUSED_BYTES
        return len(buckets) >= self.job.costs.together

    def _handed(self, bucket: _Bucket) -> float:
        assert self.speeds is not None
        return self.speeds.requests[bucket.request].nbytes.at(bucket.features, self._groups)

    def _submit(self, buckets: Sequence[_Bucket]) -> None:
        """One request for some buckets, which are at the same phase."""
        if not buckets or self.job.ranks == 1:
            return
        assert self.speeds is not None
        request = self.speeds.requests[buckets[0].request]
        ranks = {
            "all": self.job.ranks,
            "node": self.job.ranks_per_node,
            "leaders": self.job.ranks // self.job.ranks_per_node,
        }[request.group]
        handed = sum(self._handed(bucket) for bucket in buckets)
        handle = self.wire.submit(self.now, request.kind, handed, ranks, request.group)
        for bucket in buckets:
            bucket.handle = handle


def _groups(
    names: Iterable[str], nbytes: Mapping[str, int], costs: EngineCosts
) -> Iterator[list[str]]:
    """Gradients that reach the exchange together, in the order of the backward pass."""
    group: list[str] = []
    size, limit = 0, costs.first_bucket_bytes
    for name in names:
        group.append(name)
        size += nbytes[name]
        if size >= limit:
            yield group
            group, size, limit = [], 0, costs.bucket_bytes
    if group:
        yield group
