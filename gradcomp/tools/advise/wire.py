"""Time of requests on the links between ranks, and in the engine that serves them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gradcomp.exchange.link import link_bytes, link_turns
from gradcomp.tools.advise.cores import Cores
from gradcomp.tools.step_model import Link

__all__ = ["ENGINES", "EngineCosts", "KindCost", "Wire"]


@dataclass(frozen=True)
class KindCost:
    """An engine's own costs for one kind of request.

    Attributes:
        request: seconds of a request, besides the latency of its messages.
        before_byte: seconds for each byte on the link, before and after the transfer.
        beside_byte: seconds for each byte on the link, at the same time as the transfer.
    """

    request: float
    before_byte: float
    beside_byte: float


@dataclass(frozen=True)
class EngineCosts:
    """Costs of an engine for Horovod or DDP.

    Attributes:
        kinds: by kind of request, as `gradcomp.tools.advise.calibrate.request_kind` gives it.
            A missing kind costs as much as ``allgather``.
        fuses: when the engine is free, it serves all waiting requests of one kind together, as
            Horovod does in each of its cycles.
        direct: kinds in which each rank sends to each other one, so that the ranks of a node share
            its link; in others, which are rings, only the first and last of a node use it.
        bucket_bytes: gradients that the engine sends itself travel in buckets of this size, the
            first of ``first_bucket_bytes``; 0: each gradient is a request.
        first_bucket_bytes: see ``bucket_bytes``.
        copies: times that a gradient is copied into buckets and out of them.
        tokens: each step has small requests more: a token for each compressed gradient, and the
            comparison of steps.
        gradient: seconds of Python for each gradient in a step with compression, besides rounds.
        idle_cores: cores that a rank's engine takes while it has nothing to send.
    """

    kinds: Mapping[str, KindCost]
    fuses: bool
    direct: frozenset[str] = frozenset({"alltoall"})
    bucket_bytes: int = 0
    first_bucket_bytes: int = 0
    copies: int = 0
    tokens: bool = False
    gradient: float = 0.0
    idle_cores: float = 0.0

    def of(self, kind: str) -> KindCost:
        """The cost of a kind."""
        return self.kinds.get(kind) or self.kinds["allgather"]

    def with_costs(self, kinds: Mapping[str, KindCost]) -> EngineCosts:
        """The same engine with other costs for some kinds."""
        return replace(self, kinds={**self.kinds, **kinds})

    def slowed(self, factor: float) -> EngineCosts:
        """The same engine where ranks share cores, so that its work takes longer."""
        return self.with_costs(
            {
                kind: KindCost(one.request, factor * one.before_byte, factor * one.beside_byte)
                for kind, one in self.kinds.items()
            }
        )


ENGINES: dict[str, EngineCosts] = {
    "horovod": EngineCosts(
        kinds={
            "allreduce float32": KindCost(1.5e-3, 1.9e-9, 1.4e-9),
            "allreduce float16": KindCost(1.5e-3, 14e-9, 1.5e-9),
            "allgather": KindCost(1.5e-3, 3e-9, 1.5e-9),
            "alltoall": KindCost(4e-3, 3e-9, 1.5e-9),
        },
        fuses=True,
        tokens=True,
        gradient=50e-6,
        idle_cores=0.4,
    ),
    "torch": EngineCosts(
        kinds={
            "allreduce float32": KindCost(0.5e-3, 0.0, 1.3e-9),
            "allreduce float16": KindCost(0.5e-3, 0.0, 2.0e-9),
            "allgather": KindCost(0.5e-3, 1e-9, 1.3e-9),
            "alltoall": KindCost(0.5e-3, 1e-9, 1.3e-9),
        },
        fuses=False,
        direct=frozenset({"alltoall", "allgather"}),
        bucket_bytes=25 << 20,
        first_bucket_bytes=1 << 20,
        copies=2,
        gradient=40e-6,
    ),
}
"""Engines on Gloo. The costs are those of a rank with a core of its own, from the steps of ResNet-50 in
docs/results/e2e; ``gradcomp advise --measure`` finds those of a job. torch is DDP.

``gradient`` is the mean of compressed and uncompressed ones in `benchmarks/adapter_python.py`.
``idle_cores`` are the ``idle_processors`` of 2 ranks on 2 cores in docs/results/e2e/results.json:
Horovod's ranks communicate in every cycle of a millisecond.
"""

_NOTHING = 1e-9
"""Part of own work that is left by rounding only."""


@dataclass
class Served:
    """Seconds that requests have taken, by stage."""

    engine: float = 0.0
    wire: float = 0.0
    latency: float = 0.0
    nbytes: float = 0.0


@dataclass(eq=False)
class _Waiting:
    at: float
    kind: str
    nbytes: float
    ranks: int
    group: str
    done: float | None = None


@dataclass
class _Serving:
    """Requests that the engine serves together.

    Attributes:
        load: the part of this time in which the engine works, as in `Cores.own_speed`.
    """

    requests: list[_Waiting]
    begin: float
    end: float
    load: float


@dataclass
class Wire:
    """The engine and link of a rank: serves requests in the order of their arrival.

    Times are those of one rank; all ranks do the same at the same time.

    Attributes:
        cores: of the rank.
        ranks_per_node: ranks that share the link.
        served: seconds of all requests.
    """

    link: Link
    costs: EngineCosts
    cores: Cores
    ranks_per_node: int = 1
    served: Served = field(default_factory=Served)
    _requests: list[_Waiting] = field(default_factory=list)
    _waiting: deque[_Waiting] = field(default_factory=deque)
    _serving: deque[_Serving] = field(default_factory=deque)
    _free: float = 0.0

    def submit(self, at: float, kind: str, nbytes: float, ranks: int, group: str = "all") -> int:
        """Add a request; later calls have no earlier times.

        Args:
            nbytes: bytes that a rank hands over.
            ranks: number of ranks, or of nodes, that take part.
            group: of `gradcomp.exchange.rounds.RankGroup`.

        Returns:
            A number for `done`.
        """
        request = _Waiting(at, kind, nbytes, ranks, group)
        self._requests.append(request)
        self._waiting.append(request)
        return len(self._requests) - 1

    def done(self, number: int) -> float:
        """The time when a request has its reply."""
        request = self._requests[number]
        while request.done is None:
            self._serve()
        return request.done

    def worked(self, at: float, work: float) -> float:
        """The time when own work of the rank has ended, which may share cores with the engine.

        Args:
            at: its begin; no earlier than any time that was returned.
            work: its seconds without the engine.
        """
        idle = self._idle_speed
        while (serving := self._next(at)) is not None and at + work / idle > serving.begin:
            if serving.begin > at:
                work -= idle * (serving.begin - at)
                self.served.engine += (1.0 - idle) * (serving.begin - at)
                at = serving.begin
            own = self.cores.own_speed(serving.load)
            engine = self.cores.engine_speed(serving.load)
            beside = min(work / own, (serving.end - at) / engine)
            self._delay(serving, beside * (1.0 - engine))
            at, left = at + beside, work - beside * own
            if left <= _NOTHING * work:
                return at
            work = left
        self.served.engine += work / idle - work
        return at + work / idle

    @property
    def _idle_speed(self) -> float:
        """Speed of own work beside an engine that serves no requests."""
        return self.cores.own_speed(min(1.0, self.cores.slow * self.costs.idle_cores))

    def _next(self, at: float) -> _Serving | None:
        """What the engine serves at a time, or else what it serves next."""
        while self._waiting and (not self._serving or self._serving[-1].end <= at):
            self._serve()
        while self._serving and self._serving[0].end <= at:
            self._serving.popleft()
        return self._serving[0] if self._serving else None

    def _delay(self, serving: _Serving, seconds: float) -> None:
        """The engine needs longer, because own work has used its cores."""
        serving.end += seconds
        self._free += seconds
        for one in serving.requests:
            one.done = serving.end

    def _serve(self) -> None:
        first = self._waiting[0]
        begin = max(self._free, first.at)
        together = [first]
        if self.costs.fuses and first.kind != "alltoall":
            together = [
                one
                for one in self._waiting
                if one.at <= begin and (one.kind, one.group) == (first.kind, first.group)
            ]
        for one in together:
            self._waiting.remove(one)
        seconds, work = self._seconds(first, sum(one.nbytes for one in together))
        self._free = begin + seconds
        if seconds:
            self._serving.append(_Serving(together, begin, self._free, work / seconds))
        for one in together:
            one.done = self._free

    def _seconds(self, one: _Waiting, handed: float) -> tuple[float, float]:
        """Seconds of requests, and those in which the engine works."""
        kind, cost, inside = one.kind.split()[0], self.costs.of(one.kind), self._inside(one)
        handed_bytes = link_bytes(kind, handed, one.ranks)
        nbytes = 0.0 if inside else handed_bytes
        if one.group == "all" and kind in self.costs.direct and one.ranks > 1:
            outside = one.ranks - self.ranks_per_node
            nbytes *= self.ranks_per_node * outside / (one.ranks - 1)
        latency = 0.0 if inside else link_turns(kind, one.ranks) * self.link.latency
        wire = self.link.seconds(nbytes)
        before = cost.request + cost.before_byte * handed_bytes
        beside = cost.beside_byte * handed_bytes
        served = self.served
        served.latency += latency
        served.wire += wire
        served.engine += before + max(0.0, beside - wire)
        served.nbytes += nbytes
        return latency + before + max(wire, beside), before + beside

    def _inside(self, one: _Waiting) -> bool:
        """Whether a request passes no link."""
        return one.group == "node" or (one.group == "all" and one.ranks <= self.ranks_per_node)
