"""Base classes of gossip algorithms: topology, layout of tensors, counters, exchanges."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gradcomp.codec.arrays import ByteArray, FloatArray, as_bytes
from gradcomp.errors import ProtocolError, StateError, TopologyError
from gradcomp.exchange.arrays_of_state import check_mapping
from gradcomp.exchange.pieces import is_cut, pieces_of
from gradcomp.exchange.rounds import Exchange, GossipRound, TensorKey
from gradcomp.gossip.topology import Topology

__all__ = ["CompressedGossip", "Gossip", "Layout", "Tensor", "Traffic"]


@dataclass
class Traffic:
    """Traffic that one rank has sent so far.

    Attributes:
        bits: bits of all messages to all peers, without headers of the transport.
        messages: number of messages: one for each peer in each exchange.
        steps: number of rounds.
    """

    bits: int = 0
    messages: int = 0
    steps: int = 0


@dataclass(frozen=True)
class Tensor:
    """One tensor of a layout, or a piece of it.

    Attributes:
        key: of the tensor or piece.
        begin: its first index in the flat values.
        whole: name of the tensor.
    """

    key: TensorKey
    begin: int
    whole: str

    def of(self, flat: FloatArray) -> FloatArray:
        """A view of its elements."""
        return flat[self.begin : self.begin + self.key.numel]


class Layout:
    """Tensors one after the other in one flat array, the same on every rank.

    Tensors of two or more dimensions with more elements than codecs take are cut into pieces.

    Args:
        shapes: name -> shape, in the order of the array.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        self.tensors: list[Tensor] = []
        self.numel = 0
        for name, shape in shapes.items():
            key = TensorKey(name, tuple(shape), math.prod(shape))
            if len(shape) >= 2 and is_cut(key.numel):
                for piece in pieces_of(name, key.shape):
                    self.tensors.append(Tensor(piece.key, self.numel + piece.begin, name))
            else:
                self.tensors.append(Tensor(key, self.numel, name))
            self.numel += key.numel

    @cached_property
    def large(self) -> list[Tensor]:
        """Tensors of at least two dimensions, which algorithms compress."""
        return [
            tensor for tensor in self.tensors if len(tensor.key.shape) >= 2 and tensor.key.numel
        ]

    @cached_property
    def small(self) -> list[Tensor]:
        """Tensors of fewer dimensions, such as biases: they travel dense, with step size 1."""
        return [tensor for tensor in self.tensors if len(tensor.key.shape) < 2 and tensor.key.numel]

    def small_values(self, flat: FloatArray) -> FloatArray:
        """A copy of the small tensors, one after the other."""
        parts = [tensor.of(flat) for tensor in self.small]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def set_small(self, flat: FloatArray, values: FloatArray) -> None:
        """Write values in the order of `small_values` back."""
        at = 0
        for tensor in self.small:
            tensor.of(flat)[:] = values[at : at + tensor.key.numel]
            at += tensor.key.numel


class Gossip(ABC):
    """One rank's part of an algorithm; all ranks run `round` equally often.

    Attributes:
        topology: the present topology; its round number is `step`.
        rank: this rank, in [0, topology.world_size).
        traffic: traffic of this rank.
        weight: push-sum weight, above 0; 1 for algorithms without. x / weight estimates the average.
    """

    weight = 1.0

    def __init__(self, topology: Topology, rank: int) -> None:
        if not 0 <= rank < topology.world_size:
            raise TopologyError(f"rank is {rank}; it must be in [0, {topology.world_size})")
        self._check_topology(topology)
        self.topology = topology
        self.rank = rank
        self.traffic = Traffic()
        self._step = 0

    @property
    def step(self) -> int:
        """Number of rounds that have ended."""
        return self._step

    def change_topology(self, topology: Topology) -> None:
        """Continue with another topology; all ranks must do so between the same two rounds.

        Raises:
            TopologyError: it has another number of ranks, or the algorithm does not take it.
        """
        if topology.world_size != self.topology.world_size:
            raise TopologyError(
                f"'{topology.name}' is for {topology.world_size} ranks; it must be for "
                f"{self.topology.world_size}, as the topology before it"
            )
        self._check_topology(topology)
        self.topology = topology

    def round(self, x: FloatArray) -> GossipRound:
        """Mix this rank's values with those of its peers of this step, in place.

        Args:
            x: flat, C-contiguous, of the same layout on all ranks. Nothing else may change it
                before the generator has ended.
        """
        yield from self._round(x)
        self._step += 1
        self.traffic.steps += 1

    @abstractmethod
    def _round(self, x: FloatArray) -> GossipRound: ...

    @abstractmethod
    def _check_topology(self, topology: Topology) -> None:
        """Raise TopologyError for a topology that the algorithm does not take."""

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint of this rank: numbers, and dicts of arrays by name."""
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state_dict` of the same rank.

        Raises:
            StateError: the state is not of this algorithm, layout and topology.
        """
        expected = sorted(self.state_dict())
        check_mapping(state)
        if {*state} != {*expected}:
            found = ", ".join(sorted(map(repr, state))) or "none"
            raise StateError(
                f"the state has the keys {found}; it must have {', '.join(expected)}: load a state "
                "of the same algorithm"
            )
        self._step = count_of(state, "step")

    def exchange(
        self,
        phase: str,
        messages: Mapping[int, ByteArray],
        sources: Sequence[int],
        nbytes: int,
        *,
        varies: bool = False,
    ) -> Generator[Exchange, Mapping[int, ByteArray], Mapping[int, ByteArray]]:
        """Send, receive and count; for algorithms. See `Exchange`.

        Raises:
            ProtocolError: a peer sent another number of bytes than ``nbytes``, or more than that
                with ``varies``.
        """
        self.traffic.bits += 8 * sum(message.nbytes for message in messages.values())
        self.traffic.messages += len(messages)
        replies = yield Exchange(f"{self._step}{phase}", messages, sources, nbytes, varies)
        for source, reply in replies.items():
            if reply.nbytes > nbytes or (reply.nbytes < nbytes and not varies):
                raise ProtocolError(
                    f"rank {source} sent {reply.nbytes} bytes instead of {nbytes}"
                    f"{' at most' if varies else ''}: the ranks do not run the same model and "
                    "options"
                )
        return replies


class CompressedGossip(Gossip):
    """One exchange a round: small tensors dense, and large ones encoded by the algorithm."""

    name: str

    sizes_vary = False
    """Whether the size of encoded tensors differs by rank or round."""

    def __init__(
        self, topology: Topology, rank: int, shapes: Mapping[str, Sequence[int]], gamma: float
    ) -> None:
        if not 0 < gamma <= 2:
            raise ValueError(f"gamma is {gamma}; it must be in (0, 2]")
        super().__init__(topology, rank)
        self.layout = Layout(shapes)
        self._gamma = gamma

    def _check_topology(self, topology: Topology) -> None:
        if not topology.is_doubly_stochastic:
            raise TopologyError(
                f"{self.name} needs a doubly stochastic mixing matrix, which '{topology.name}' has "
                "not: take weights='metropolis', a regular graph, or push-sum"
            )

    def _round(self, x: FloatArray) -> GossipRound:
        peers = self.topology.peers(self.rank, self._step)
        row = self.topology.matrix(self._step)[self.rank]
        small = self.layout.small_values(x)
        body = self._encode(x)
        message = np.concatenate([as_bytes(small), body])
        nbytes = small.nbytes + self._body_size()
        messages = dict.fromkeys(peers.out, message)
        replies = yield from self.exchange("", messages, peers.in_, nbytes, varies=self.sizes_vary)
        mixed = small * np.float32(row[self.rank])
        bodies = {}
        for source in sorted(replies):
            reply = replies[source]
            if reply.nbytes < small.nbytes:
                raise ProtocolError(
                    f"rank {source} sent {reply.nbytes} bytes, and its small tensors alone have "
                    f"{small.nbytes}: the ranks do not run the same model"
                )
            mixed += np.float32(row[source]) * reply[: small.nbytes].view(np.float32)
            bodies[source] = reply[small.nbytes :]
        self.layout.set_small(x, self._mixed_small(small, mixed))
        self._mix(x, row, body, bodies)

    def _mixed_small(self, small: FloatArray, total: FloatArray) -> FloatArray:
        """The small tensors after a round, from their values and the weighted sum over peers."""
        return total

    @abstractmethod
    def _body_size(self) -> int:
        """Bytes of every rank's encoded tensors; the most they can be where sizes vary."""

    @abstractmethod
    def _encode(self, x: FloatArray) -> ByteArray:
        """Encode the large tensors for the peers."""

    @abstractmethod
    def _mix(
        self,
        x: FloatArray,
        row: np.ndarray[Any, np.dtype[np.float64]],
        own_body: ByteArray,
        bodies: Mapping[int, ByteArray],
    ) -> None:
        """Mix the large tensors with the peers' ``bodies``, in rank order."""


def count_of(state: Mapping[str, Any], key: str) -> int:
    """A number of rounds in a state.

    Raises:
        StateError: it is missing, or not in [0, 2**48).
    """
    value = state.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**48:
        raise StateError(
            f"the state's '{key}' is {value!r:.80}; it must be a whole number in [0, 2**48): load "
            "an earlier checkpoint"
        )
    return value
