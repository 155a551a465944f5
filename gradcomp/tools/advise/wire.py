"""Time of requests on the links between ranks, and in the engine that serves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gradcomp.exchange.link import link_bytes, link_turns
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
        fuses: requests of one kind that come within the time of one are served together. (All that
            wait would be, too; but on a link that keeps them waiting, this saves next to nothing.)
        direct: kinds in which each rank sends to each other one, so that the ranks of a node share
            its link; in others, which are rings, only the first and last of a node use it.
        bucket_bytes: gradients that the engine sends itself travel in buckets of this size, the
            first of ``first_bucket_bytes``; 0: each gradient is a request.
        first_bucket_bytes: see ``bucket_bytes``.
        copies: times that a gradient is copied into buckets and out of them.
        tokens: each step has two small requests more: a token for compressed gradients, and the
            comparison of steps.
    """

    kinds: Mapping[str, KindCost]
    fuses: bool
    direct: frozenset[str] = frozenset({"alltoall"})
    bucket_bytes: int = 0
    first_bucket_bytes: int = 0
    copies: int = 0
    tokens: bool = False

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
    ),
}
"""Engines on Gloo. The costs are those of a rank with a core of its own, from the steps of ResNet-50 in
docs/results/e2e; ``gradcomp advise --measure`` finds those of a job. torch is DDP."""


@dataclass
class Served:
    """Seconds that requests have taken, by stage."""

    engine: float = 0.0
    wire: float = 0.0
    latency: float = 0.0
    nbytes: float = 0.0


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
    """

    link: Link
    costs: EngineCosts
    ranks_per_node: int = 1
    served: Served = field(default_factory=Served)
    _queue: list[_Waiting] = field(default_factory=list)
    _first: int = 0
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
        first = self._queue[self._first]
        batch = [first]
        if self.costs.fuses and first.kind != "alltoall":
            until = first.at + self.costs.of(first.kind).request
            for other in self._queue[self._first + 1 :]:
                alike = (other.kind, other.group) == (first.kind, first.group)
                if other.at > until or not alike:
                    break
                batch.append(other)
        self._first += len(batch)
        begin = max(self._free, batch[-1].at)
        self._free = begin + self._seconds(first, sum(one.nbytes for one in batch))
        for one in batch:
            one.done = self._free

    def _seconds(self, one: _Waiting, handed: float) -> float:
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
        return latency + before + max(wire, beside)

    def _inside(self, one: _Waiting) -> bool:
        """Whether a request passes no link."""
        return one.group == "node" or (one.group == "all" and one.ranks <= self.ranks_per_node)
