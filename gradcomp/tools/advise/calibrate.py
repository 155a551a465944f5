"""Calibration: the speed of a spec's exchange on this machine, from real rounds without a network."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.config.schema import Config, load_config
from gradcomp.exchange.rounds import AllReduce, Ready, Request
from gradcomp.exchange.select import pattern_between_nodes
from gradcomp.runtime.loopback import Loopback, lockstep
from gradcomp.runtime.measure.profile import Profile, StepProfile
from gradcomp.runtime.measure.stats import Stats
from gradcomp.tools.advise.laws import Features, Law, Point, fit_law
from gradcomp.tools.synthetic import LATE_STEP, synthetic_gradients

__all__ = ["STAGES", "RequestLaw", "Speeds", "config_of", "measure_speeds", "request_kind"]

Stage = Literal["encode", "decode", "copy"]

STAGES: tuple[Stage, ...] = ("encode", "decode", "copy")
"""Stages of a rank's own work; encode includes memories."""

_SIDE = 128
_MODELS: Sequence[Mapping[str, tuple[int, ...]]] = (
    {"a": (_SIDE, _SIDE)},
    {f"a{i}": (_SIDE, _SIDE) for i in range(16)},
    {f"a{i}": (1024, 1024) for i in range(8)},
    {f"a{i}": (16, 65536) for i in range(4)},
)
"""One small tensor; a bucket of them; large ones, a bucket each; long matrices.

Large ones take turns, so that no cache holds what a round reads, as in a step of a real model. Small
ones, which caches would hold, take turns with `_other_work`.
"""

_HELD_BYTES = 1 << 26
"""Bytes of gradients that caches may hold."""

_GROUPS = (2, 4)
"""Numbers of ranks, or of nodes with `_PER_NODE` ranks each."""

_PER_NODE = 2
_PASSES = 3
"""Measurements of each pair, in turns: a processor that others share changes its speed for seconds at a time."""

_LONG = 2.0
"""Seconds of measurements of a pair after which it is not measured again: all pairs together take less than
a minute, and the speed of a processor changes within so long a measurement as well."""

_ENDED = object()


@dataclass(frozen=True)
class RequestLaw:
    """One request of a round.

    Attributes:
        kind: as `request_kind` gives it.
        group: "all", "node" or "leaders".
        nbytes: bytes that a rank hands over.
    """

    kind: str
    group: str
    nbytes: Law


@dataclass(frozen=True)
class Speeds:
    """Costs of the rounds of one spec and exchange.

    Attributes:
        requests: of a round, in order.
        segments: seconds by stage of a rank's work before each request, and after the last one.
    """

    requests: tuple[RequestLaw, ...]
    segments: tuple[dict[Stage, Law], ...]

    def to_json(self) -> dict[str, Any]:
        """For `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Speeds:
        """Speeds from the values of `to_json`."""
        return cls(
            tuple(
                RequestLaw(request["kind"], request["group"], _law(request["nbytes"]))
                for request in saved["requests"]
            ),
            tuple(
                {stage: _law(segment[stage]) for stage in STAGES} for segment in saved["segments"]
            ),
        )


def _law(saved: Mapping[str, Any]) -> Law:
    return Law(tuple(saved["fixed"]), tuple(saved["per_rank"]), tuple(saved["shared"]))


def config_of(spec: str, exchange: str, ranks_per_node: int = 1) -> Config:
    """The configuration of a spec and an exchange, with the default rules."""
    settings = ["version=1", f"compress.default={spec}", f"compress.exchange={exchange}"]
    if pattern_between_nodes(exchange) is not None:
        settings.append(f"compress.ranks_per_node={ranks_per_node}")
    return load_config([], settings)


def request_kind(request: Request) -> str:
    """The kind of a request, by which engines differ in speed: sums by their dtype."""
    if isinstance(request, AllReduce):
        return f"allreduce {request.array.dtype.name}"
    return request.kind


@dataclass(frozen=True)
class _Sample:
    """One bucket's round on one rank."""

    features: Features
    ranks: int
    requests: tuple[tuple[str, str, int], ...]
    segments: tuple[dict[Stage, float], ...]


def measure_speeds(
    pairs: Sequence[tuple[str, str]], tick: Callable[[], None] = lambda: None
) -> list[Speeds]:
    """Average synthetic gradients in one process, and fit the costs of a rank.

    Args:
        pairs: specs, each with one of `gradcomp.exchange.select.EXCHANGES`.
        tick: called `ticks` times for each pair.
    """
    samples: list[list[_Sample]] = [[] for _ in pairs]
    for shape in {shape for shapes in _MODELS for shape in shapes.values()}:
        _gradients(shape)  # they are kept, and no part of the first pair's time
    spent = [0.0] * len(pairs)
    for _ in range(_PASSES):
        for number, ((spec, exchange), of_pair) in enumerate(zip(pairs, samples, strict=True)):
            again = spent[number] < _LONG
            began = time.perf_counter()
            per_node = _PER_NODE if pattern_between_nodes(exchange) is not None else 1
            config = config_of(spec, exchange, per_node)
            for shapes in _MODELS:
                for groups in _GROUPS if again else ():
                    of_pair += _measure(config, shapes, groups, per_node)
                tick()
            spent[number] += time.perf_counter() - began
    return [_fitted(of_pair) for of_pair in samples]


ticks = _PASSES * len(_MODELS)
"""Number of calls of ``tick`` in `measure_speeds` for each pair."""


def _fitted(samples: Sequence[_Sample]) -> Speeds:
    """The laws of one pair's costs."""
    # A bucket with too few elements for its ranks may travel in another pattern.
    usual = statistics.mode(_signature(sample) for sample in samples)
    alike: dict[tuple[Features, int], list[_Sample]] = {}
    for sample in samples:
        if _signature(sample) == usual:
            alike.setdefault((sample.features, sample.ranks), []).append(sample)
    means = [_merged(some, statistics.fmean) for some in alike.values()]

    def law(value: Callable[[_Sample], float]) -> Law:
        return fit_law([Point(sample.features, sample.ranks, value(sample)) for sample in means])

    return Speeds(
        tuple(
            RequestLaw(kind, group, law(lambda sample, i=i: sample.requests[i][2]))  # type: ignore[misc]
            for i, (kind, group) in enumerate(usual)
        ),
        tuple(
            {
                stage: law(lambda sample, i=i, stage=stage: sample.segments[i][stage])  # type: ignore[misc]
                for stage in STAGES
            }
            for i in range(len(usual) + 1)
        ),
    )


def _signature(sample: _Sample) -> tuple[tuple[str, str], ...]:
    return tuple((kind, group) for kind, group, _ in sample.requests)


def _measure(
    config: Config, shapes: Mapping[str, tuple[int, ...]], groups: int, per_node: int
) -> list[_Sample]:
    """The rounds of rank 0 in one step, one sample for each size of bucket: the medians."""
    world = groups * per_node
    loop = Loopback(config, world)
    loop.begin_at(LATE_STEP, shapes)
    grads = {name: [np.empty(shape, "f4") for _ in range(world)] for name, shape in shapes.items()}
    first = loop.ranks[0]
    found: dict[Features, list[_Sample]] = {}
    for measured in (False, True):  # the first step allocates
        for name, of_ranks in grads.items():
            for grad, numbers in zip(of_ranks, _gradients(shapes[name]), strict=False):
                np.copyto(grad, numbers)  # averages have overwritten it
        for sample in _step(loop, first.buckets(first.resolve_all(shapes)), grads, groups):
            if measured:
                found.setdefault(sample.features, []).append(sample)
    return [_merged(samples, statistics.median) for samples in found.values()]


@functools.cache
def _gradients(shape: tuple[int, ...]) -> list[FloatArray]:
    """A tensor's gradients on the ranks of the largest measurement."""
    rng = np.random.default_rng(0)
    return synthetic_gradients(rng, shape, max(_GROUPS) * _PER_NODE)


def _step(
    loop: Loopback,
    buckets: Sequence[Sequence[str]],
    grads: Mapping[str, Sequence[FloatArray]],
    groups: int,
) -> list[_Sample]:
    """All buckets, phase by phase as in a job: no cache holds what an earlier phase has touched."""
    observed = []
    for names in buckets:
        rounds = [
            rank.bucket_round(names[0], {name: grads[name][i] for name in names}, overwrite=True)
            for i, rank in enumerate(loop.ranks)
        ]
        profile = Profile(Stats())
        requests: list[tuple[str, str, int]] = []
        rounds[0] = _observed(rounds[0], profile, requests)
        observed.append((lockstep(rounds, loop.ranks[0].ranks_per_node), profile, requests))
    phases = [round_ for round_, _, _ in observed]
    nbytes = sum(grad.nbytes for of_ranks in grads.values() for grad in of_ranks)
    while phases:
        if nbytes < _HELD_BYTES:
            _other_work()
        phases = [round_ for round_ in phases if next(round_, _ENDED) is not _ENDED]
    return [
        _Sample(
            Features.of_bucket(grads[name][0].shape for name in names),
            groups,
            tuple(requests),
            tuple(map(_segment, profile.steps)),
        )
        for names, (_, profile, requests) in zip(buckets, observed, strict=True)
    ]


def _other_work() -> None:
    """Fill the caches with other data."""
    data = _other_data()
    np.add(data, 1, out=data)


@functools.cache
def _other_data() -> FloatArray:
    return np.zeros(_HELD_BYTES // 4, np.float32)


def _segment(step: StepProfile) -> dict[Stage, float]:
    phases = step.phases
    return {
        "encode": phases["compensate"] + phases["encode"],
        "decode": phases["decode"],
        "copy": phases["copy"],
    }


def _observed(
    round_: Generator[Request | Ready, Any, Any],
    profile: Profile,
    requests: list[tuple[str, str, int]],
) -> Generator[Request, Any, Any]:
    """The round; each segment between two requests is a step of the profile."""
    reply = None
    try:
        while True:
            profile.begin_step()
            request = profile.resume("bucket", round_, reply)
            assert not isinstance(request, Ready)  # gradients are on the host
            requests.append((request_kind(request), request.group, request.nbytes))
            reply = yield request
    except StopIteration as stop:
        return stop.value


def _merged(samples: Sequence[_Sample], average: Callable[[Iterable[float]], float]) -> _Sample:
    """One sample that replaces several of the same rounds."""
    first = samples[0]
    return _Sample(
        first.features,
        first.ranks,
        tuple(
            (kind, group, round(statistics.fmean(sample.requests[i][2] for sample in samples)))
            for i, (kind, group, _) in enumerate(first.requests)
        ),
        tuple(
            {stage: average(sample.segments[i][stage] for sample in samples) for stage in STAGES}
            for i in range(len(first.segments))
        ),
    )
