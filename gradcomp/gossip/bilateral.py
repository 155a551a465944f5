"""Asynchronous averaging of two ranks at a time: AD-PSGD."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from gradcomp.codec.arrays import ByteArray, FloatArray, as_bytes
from gradcomp.errors import ProtocolError, TopologyError
from gradcomp.gossip.base import Traffic
from gradcomp.gossip.topology import Topology

__all__ = ["Bilateral", "Sides"]


class Sides:
    """The two kinds of ranks of a bipartite graph: active ones ask, passive ones answer.

    Lian, Zhang, Zhang, Liu: "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (ICML
    2018), section 4: where active ranks have passive peers alone, and the other way round, ranks
    that wait for each other never form a circle.

    Args:
        topology: the edges of all its rounds count, whichever way they lead.

    Attributes:
        active: for each rank whether it is. Of the ranks that hang together the lowest is passive,
            as is a rank without peers.
        peers: for each rank those of the other kind that it exchanges with, in rising order.

    Raises:
        TopologyError: the graph is not bipartite.
    """

    def __init__(self, topology: Topology) -> None:
        ranks = range(topology.world_size)
        joined: list[set[int]] = [set() for _ in ranks]
        for step in range(topology.period):
            for rank in ranks:
                for peer in topology.peers(rank, step).out:
                    joined[rank].add(peer)
                    joined[peer].add(rank)
        kinds: dict[int, bool] = {}
        for first in ranks:
            waiting = [] if first in kinds else [first]
            kinds.setdefault(first, False)
            while waiting:
                rank = waiting.pop()
                for peer in joined[rank]:
                    if peer not in kinds:
                        kinds[peer] = not kinds[rank]
                        waiting.append(peer)
                    elif kinds[peer] == kinds[rank]:
                        raise TopologyError(
                            f"asynchronous averaging needs a bipartite graph, and in "
                            f"'{topology.name}' of {topology.world_size} ranks a circle of peers "
                            f"with an odd number of ranks goes through {rank} and {peer}: take "
                            "'dbe', 'dbl', or 'ring' with an even number of ranks"
                        )
        self.active = [kinds[rank] for rank in ranks]
        self.peers = [sorted(peers) for peers in joined]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """All pairs of peers, the lower rank first, in rising order."""
        return [(rank, peer) for rank, of in enumerate(self.peers) for peer in of if rank < peer]

    def choose(self, rank: int, exchange: int, seed: int) -> int:
        """The peer that an active rank asks in one of its exchanges: random, all alike."""
        peers = self.peers[rank]
        return peers[int(np.random.default_rng([seed, rank, exchange]).integers(len(peers)))]


class Bilateral:
    """One rank's values, which change while others average with them.

    The averaging of algorithm 1 of AD-PSGD (see `Sides`): an active rank sends its values a, the
    passive one has b; both move towards each other by the same amount, ::

        d = (a - b) / 2;   passive: b += d, and answers with the b of before;   active: a -= d

    so that an exchange keeps the sum of all values, whatever happens to them meanwhile: changes of
    ``add`` are kept. Methods may be called on several threads.

    Args:
        values: flat; copied.

    Attributes:
        traffic: what this rank has sent; an exchange is a step of both its ends.
    """

    def __init__(self, values: npt.ArrayLike) -> None:
        self._values: FloatArray = np.array(values).reshape(-1)
        self._lock = threading.Lock()
        self.traffic = Traffic()

    def read(self) -> FloatArray:
        """A copy."""
        with self._lock:
            return self._values.copy()

    def write(self, values: FloatArray) -> None:
        """Have these instead."""
        with self._lock:
            self._values[:] = values

    def add(self, change: FloatArray) -> None:
        """Add, such as an optimizer's step."""
        with self._lock:
            self._values += change

    def ask(self) -> ByteArray:
        """Of an active rank: what it sends, to be given to `take`, too."""
        message = self.read()
        self._count(message, ends=False)
        return as_bytes(message)

    def answer(self, question: ByteArray) -> ByteArray:
        """Of a passive rank: average with an active one's values; returns what it is to get."""
        theirs = self._of(question)
        with self._lock:
            before = self._values.copy()
            self._values += _half(theirs, before)
        self._count(before, ends=True)
        return as_bytes(before)

    def take(self, question: ByteArray, answer: ByteArray) -> None:
        """Of an active rank: average with what the passive one has answered."""
        change = _half(self._of(question), self._of(answer))
        with self._lock:
            self._values -= change
            self.traffic.steps += 1

    def _count(self, message: FloatArray, *, ends: bool) -> None:
        """A message, and whether the exchange ends with it."""
        with self._lock:  # a passive rank answers several at once
            self.traffic.bits += 8 * message.nbytes
            self.traffic.messages += 1
            self.traffic.steps += ends

    def _of(self, message: ByteArray) -> FloatArray:
        if message.nbytes != self._values.nbytes:
            raise ProtocolError(
                f"a peer sent {message.nbytes} bytes instead of {self._values.nbytes}: the ranks "
                "do not run the same model"
            )
        values: FloatArray = message.view(self._values.dtype)
        return values


def _half(asking: FloatArray, answering: FloatArray) -> FloatArray:
    """Both ends compute it alike, so that they move by the same amount."""
    half: FloatArray = (asking - answering) * asking.dtype.type(0.5)
    return half
