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
    2018), section 4: edges join an active and a passive rank only, so ranks that wait for each
    other never form a circle.

    Args:
        topology: the edges of all rounds count, in either direction.

    Attributes:
        active: for each rank, whether it is active. In each connected component the lowest rank is
            passive; so is a rank without peers.
        peers: for each rank, its peers (of the other kind) in ascending order.

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
        """All pairs of peers, the lower rank first, in ascending order."""
        return [(rank, peer) for rank, of in enumerate(self.peers) for peer in of if rank < peer]

    def choose(self, rank: int, exchange: int, seed: int) -> int:
        """The peer that an active rank asks in its ``exchange``-th exchange: uniformly random."""
        peers = self.peers[rank]
        return peers[int(np.random.default_rng([seed, rank, exchange]).integers(len(peers)))]


class Bilateral:
    """One rank's values, which other ranks average with at any time.

    The averaging of AD-PSGD, algorithm 1 (see `Sides`). An active rank sends its values a, the
    passive rank has b; both move towards each other by the same amount, ::

        d = (a - b) / 2;   passive: answers with b, then b += d;   active: a -= d

    An exchange keeps the sum of all values even if `add` changes them meanwhile. Methods may be
    called on several threads.

    Args:
        values: flat; copied.

    Attributes:
        traffic: traffic of this rank; an exchange is a step at both ends.
    """

    def __init__(self, values: npt.ArrayLike) -> None:
        self._values: FloatArray = np.array(values).reshape(-1)
        self._lock = threading.Lock()
        self.traffic = Traffic()

    def read(self) -> FloatArray:
        """A copy of the values."""
        with self._lock:
            return self._values.copy()

    def write(self, values: FloatArray) -> None:
        """Replace the values."""
        with self._lock:
            self._values[:] = values

    def add(self, change: FloatArray) -> None:
        """Add a change, such as an optimizer's step."""
        with self._lock:
            self._values += change

    def ask(self) -> ByteArray:
        """On an active rank: the message to send, which `take` needs, too."""
        message = self.read()
        self._count(message, ends=False)
        return as_bytes(message)

    def answer(self, question: ByteArray) -> ByteArray:
        """On a passive rank: average with an active rank's values; returns the answer."""
        theirs = self._of(question)
        with self._lock:
            before = self._values.copy()
            self._values += _half(theirs, before)
        self._count(before, ends=True)
        return as_bytes(before)

    def take(self, question: ByteArray, answer: ByteArray) -> None:
        """On an active rank: average with the answer of the passive rank."""
        change = _half(self._of(question), self._of(answer))
        with self._lock:
            self._values -= change
            self.traffic.steps += 1

    def _count(self, message: FloatArray, *, ends: bool) -> None:
        """Count a message, and a step if the exchange ends with it."""
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
    """The common change; both ends round it alike, so the sum of all values is kept."""
    half: FloatArray = asking - answering
    half *= asking.dtype.type(0.5)
    return half
