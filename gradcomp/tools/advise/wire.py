"""Time of requests on the links between ranks, and in the engine that serves them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace

from gradcomp.exchange.link import link_bytes, link_turns
from gradcomp.tools.step_model import Link

__all__ = ["ENGINES", "EngineCosts", "KindCost", "Wire"]


@dataclass(frozen=True)
class KindCost:
    """An engine's own costs for one kind of request.

    Attributes:
        request: seconds of a request, besides the latency of its messages. They count as work of
            the engine unless it fuses: a request of a few bytes keeps Gloo's threads busy.
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
        fuses: requests of one kind that come within the time of one are served together, as Horovod
            does in its cycles; an all-to-all is not. (All that wait would be, too, but then a faster
            link could lead to more cycles and a longer step.)
        together: exchanges of frames, of gradients that come together, in one request at most.
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
        spins: the engine's own wait, without compression, polls without a pause.
    """

    kinds: Mapping[str, KindCost]
    fuses: bool
    together: int = 1
    direct: frozenset[str] = frozenset({"alltoall"})
    bucket_bytes: int = 0
    first_bucket_bytes: int = 0
    copies: int = 0
    tokens: bool = False
    gradient: float = 0.0
    idle_cores: float = 0.0
    spins: bool = False

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
                kind: KindCost(*(factor * cost for cost in astuple(costs)))
                for kind, costs in self.kinds.items()
            }
        )


ENGINES: dict[str, EngineCosts] = {
    "horovod": EngineCosts(
        kinds={
            "allreduce float32": KindCost(2.3e-3, 0.26e-9, 0.77e-9),
            "allreduce float16": KindCost(2.8e-3, 2.6e-9, 2.4e-9),
            "allgather": KindCost(1.6e-3, 0.36e-9, 0.41e-9),
            "alltoall": KindCost(2.7e-3, 0.99e-9, 0.0),
        },
        fuses=True,
        tokens=True,
        gradient=55e-6,
        idle_cores=0.1,
        spins=True,
    ),
    "torch": EngineCosts(
        kinds={
            "allreduce float32": KindCost(1.8e-3, 0.02e-9, 0.96e-9),
            "allreduce float16": KindCost(2.2e-3, 0.0, 1.5e-9),
            "allgather": KindCost(0.92e-3, 0.23e-9, 0.46e-9),
            "alltoall": KindCost(0.76e-3, 0.22e-9, 0.62e-9),
        },
        fuses=False,
        together=8,
        direct=frozenset({"alltoall", "allgather"}),
        bucket_bytes=25 << 20,
        first_bucket_bytes=1 << 20,
        copies=2,
        gradient=10e-6,
    ),
}
"""Engines on Gloo; torch is DDP.

``kinds`` are the costs of a rank that has a core for itself: half of those of 4 ranks on 2 cores, which
`benchmarks/advise.py` measures by requests. ``gradcomp advise --measure`` finds those of a job.
``gradient`` is about the mean of compressed and uncompressed ones in `benchmarks/adapter_python.py`.
``idle_cores`` fit steps of `benchmarks/advise.py` at 1 Gbit/s. Horovod's ranks communicate in every cycle
of a millisecond, which takes a third of a core that is idle otherwise (``idle_processors`` in
docs/results/advise/results.json), but cycles are longer where others want the cores. That its wait ``spins`` is in
docs/horovod.md, and makes the difference of "Horovod fp16" and "our fp16" in docs/results/e2e.
"""


@dataclass
class Served:
    """Time that requests have taken, in seconds by stage.

    Attributes:
        work: seconds in which the engine works, at the same time as the transfer or not.
    """

    engine: float = 0.0
    wire: float = 0.0
    latency: float = 0.0
    nbytes: float = 0.0
    work: float = 0.0


@dataclass
class _Waiting:
    at: float
    kind: str
    nbytes: float
    ranks: int
    group: str
    done: float | None = None


@dataclass
class Wire:
    """The engine and link of a rank: serves requests in the order of their arrival.

    Times are those of one rank; all ranks do the same at the same time.

    Attributes:
        ranks_per_node: ranks that share the link.
        served: seconds of all requests.
        spins_from: seconds from which on the rank polls for its replies without a pause.
        spin: seconds by which a second of the engine's work then takes longer.
    """

    link: Link
    costs: EngineCosts
    ranks_per_node: int = 1
    served: Served = field(default_factory=Served)
    spins_from: float = math.inf
    spin: float = 0.0
    _queue: list[_Waiting] = field(default_factory=list)
    _first: int = 0
    _open: dict[tuple[str, str], float] = field(default_factory=dict)
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
        self._queue.append(_Waiting(at, kind, nbytes, ranks, group))
        return len(self._queue) - 1

    def done(self, number: int) -> float:
        """The time when a request has its reply."""
        while self._queue[number].done is None:
            self._serve()
        done = self._queue[number].done
        assert done is not None
        return done

    def _serve(self) -> None:
        waiting = self._queue[self._first]
        self._first += 1
        kind, cost, served = waiting.kind.split()[0], self.costs.of(waiting.kind), self.served
        handed, nbytes = self._bytes(kind, waiting)
        latency = (
            0.0 if self._inside(waiting) else link_turns(kind, waiting.ranks) * self.link.latency
        )
        request, fuses = cost.request, self.costs.fuses and kind != "alltoall"
        if fuses and waiting.at <= self._open.get((waiting.kind, waiting.group), -math.inf):
            latency = request = 0.0  # it joins an earlier one
        elif fuses:
            self._open[waiting.kind, waiting.group] = waiting.at + request
        wire = self.link.seconds(nbytes)
        before, beside = cost.before_byte * handed, cost.beside_byte * handed
        seconds = latency + request + before + max(wire, beside)
        # Of an engine that fuses, a request's time is a wait for the next cycle and other ranks.
        work = before + beside + (0.0 if fuses else request)
        begin = max(self._free, waiting.at)
        end = begin + seconds
        if seconds and end > self.spins_from:
            end += self.spin * work * (end - max(begin, self.spins_from)) / seconds
        waiting.done = self._free = end
        served.latency += latency
        served.wire += wire
        served.engine += request + before + max(0.0, beside - wire)
        served.nbytes += nbytes
        served.work += work

    def _bytes(self, kind: str, waiting: _Waiting) -> tuple[float, float]:
        """Bytes that the engine handles for a request, and those that pass the node's link."""
        handed = link_bytes(kind, waiting.nbytes, waiting.ranks)
        if self._inside(waiting):
            return handed, 0.0
        if waiting.group == "all" and kind in self.costs.direct and waiting.ranks > 1:
            outside = waiting.ranks - self.ranks_per_node
            return handed, handed * self.ranks_per_node * outside / (waiting.ranks - 1)
        return handed, handed

    def _inside(self, waiting: _Waiting) -> bool:
        """Whether a request passes no link."""
        return waiting.group == "node" or (
            waiting.group == "all" and waiting.ranks <= self.ranks_per_node
        )
