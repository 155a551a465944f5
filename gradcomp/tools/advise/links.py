"""Measurement of the links of a job that is running: seconds of requests, by kind and size."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points

import numpy as np

from gradcomp.codec.codec import get_codec
from gradcomp.errors import GradcompError
from gradcomp.exchange.engine import Engine, JobLinks
from gradcomp.exchange.link import link_bytes
from gradcomp.exchange.rounds import AllGather, AllReduce, AllToAll, Request
from gradcomp.tools.advise.calibrate import request_kind
from gradcomp.tools.advise.wire import ENGINES, EngineCosts, KindCost
from gradcomp.tools.step_model import Link

__all__ = ["MeasuredLinks", "engine_here", "measure_links", "open_links"]

_GROUP = "gradcomp.links"

_TOGETHER = 4
"""Large requests under way at once, as in a step."""

_FIRST_BYTES = 1 << 16
_MOST_BYTES = 1 << 24
_LONG_SECONDS = 0.2
"""Sizes double until a measurement takes as long, or reaches `_MOST_BYTES` a request."""

_REPEATS = 5


@dataclass(frozen=True)
class MeasuredLinks:
    """The links of a job.

    Attributes:
        engine: a key of `gradcomp.tools.advise.wire.ENGINES`.
        ranks, ranks_per_node: of the job.
        request: seconds of the smallest request, by kind.
        byte: further seconds for each byte on a rank's link, by kind.
    """

    engine: str
    ranks: int
    ranks_per_node: int
    request: dict[str, float]
    byte: dict[str, float]

    @property
    def link(self) -> Link:
        """The link, at the rate of the fastest kind. Requests include its latency."""
        fastest = min(self.byte.values())
        return Link(8 / fastest if fastest > 0 else float("inf"))

    @property
    def costs(self) -> EngineCosts:
        """The engine: of each kind the part that the link does not explain."""
        fastest = min(self.byte.values())
        engine = ENGINES[self.engine]
        kinds = {
            kind: KindCost(self.request[kind], self.byte[kind] - fastest, 0.0) for kind in self.byte
        }
        # Ranks that share a link were measured together.
        return replace(engine.with_costs(kinds), direct=frozenset())


def engine_here() -> str:
    """The engine with the launcher that has started this process.

    Raises:
        GradcompError: none has.
    """
    if "HOROVOD_RANK" in os.environ:
        return "horovod"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return "torch"
    raise GradcompError(
        "--measure needs the ranks of a job: run `horovodrun -np N gradcomp advise ... --measure` or "
        "`torchrun --no-python --nproc-per-node=N gradcomp advise ... --measure`, or give --bandwidth "
        "and --ranks instead"
    )


def open_links(engine: str) -> JobLinks:
    """Join the job as one of its ranks.

    Raises:
        GradcompError: the adapter of the engine is not installed.
    """
    for entry in entry_points(group=_GROUP, name=engine):
        try:
            links: JobLinks = entry.load()()
        except ImportError as error:
            raise GradcompError(f"--measure: the engine {engine} is missing: {error}") from error
        return links
    raise GradcompError(
        f"--measure: no installed package measures the links of {engine}: install gradcomp again "
        "(pip install .)"
    )


def measure_links(job: JobLinks, tick: Callable[[], None] = lambda: None) -> MeasuredLinks:
    """Time requests; every rank must call it.

    Args:
        tick: called once for each of `kinds`.

    Raises:
        GradcompError: there is one rank only.
    """
    if job.size < 2:
        raise GradcompError("--measure found 1 rank, which has no links; start at least 2")
    request, byte = {}, {}
    for make in _MAKERS:
        kind = request_kind(make(job.size, "x", 64))
        request[kind] = _seconds(job, [make(job.size, kind, 64)])
        nbytes, seconds = _FIRST_BYTES, 0.0
        while True:
            several = [make(job.size, f"{kind}.{i}", nbytes) for i in range(_TOGETHER)]
            seconds = _seconds(job, several)
            # All ranks have the same number of seconds, so they decide alike.
            if seconds >= _LONG_SECONDS or nbytes >= _MOST_BYTES:
                break
            nbytes *= 2
        passed = sum(link_bytes(kind.split()[0], request_.nbytes, job.size) for request_ in several)
        byte[kind] = max(seconds - request[kind], 0.0) / passed
        tick()
    return MeasuredLinks(job.name, job.size, job.ranks_per_node, request, byte)


def _reduce(dtype: str) -> Callable[[int, str, int], Request]:
    def make(_: int, name: str, nbytes: int) -> Request:
        # Horovod adds halves up to twice as fast if they are all alike.
        numbers = np.random.default_rng(0).standard_normal(
            max(nbytes // np.dtype(dtype).itemsize, 1)
        )
        return AllReduce(name, numbers.astype(dtype))

    return make


def _gather(_: int, name: str, nbytes: int) -> Request:
    return AllGather(name, get_codec("identity").encode(np.zeros(nbytes // 4, np.float32)).copy())


def _scatter(ranks: int, name: str, nbytes: int) -> Request:
    part = max(nbytes // ranks, 1)
    return AllToAll(name, np.zeros(part * ranks, np.uint8), [part] * ranks)


_MAKERS: Sequence[Callable[[int, str, int], Request]] = (
    _reduce("float32"),
    _reduce("float16"),
    _gather,
    _scatter,
)

kinds = len(_MAKERS)
"""Number of kinds of requests that `measure_links` times."""


def _seconds(job: JobLinks, requests: Sequence[Request]) -> float:
    """The median of some repetitions, as the mean over the ranks."""
    samples = []
    for _ in range(1 + _REPEATS):
        _run(job.engine, [AllReduce("begin", np.zeros(1, np.float32))])
        began = time.perf_counter()
        _run(job.engine, requests)
        samples.append(time.perf_counter() - began)
    median = np.array([statistics.median(samples[1:])])
    (mean,) = _run(job.engine, [AllReduce("seconds", median)])
    return float(mean[0])


def _run(engine: Engine, requests: Sequence[Request]) -> list[np.ndarray]:
    handles = [engine.start(request) for request in requests]
    return [engine.finish(handle) for handle in handles]
