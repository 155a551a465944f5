"""Gossip without compression: averaging with peers, and push-sum."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from gradcomp.codec.arrays import ByteArray, FloatArray, as_bytes
from gradcomp.errors import StateError, TopologyError
from gradcomp.exchange.arrays_of_state import check_mapping
from gradcomp.exchange.rounds import Exchange, GossipRound
from gradcomp.gossip.base import Gossip
from gradcomp.gossip.topology import Topology

__all__ = ["PushSum", "SimpleGossip", "WeightedGossip"]


class SimpleGossip(Gossip):
    """x_i <- x_i + gamma (sum_j W_ij x_j - x_i): sends all values to every peer.

    Xiao, Boyd: "Fast linear iterations for distributed averaging" (2004). With an optimizer's step
    before each round this is D-PSGD: Lian, Zhang, Zhang, Hsieh, Zhang, Liu: "Can Decentralized
    Algorithms Outperform Centralized Algorithms?" (NeurIPS 2017), algorithm 1.

    Args:
        topology: doubly stochastic, so that the average is kept; it may change with the step.
        rank: this rank.
        gamma: step size in (0, 2]. The fastest for a symmetric graph is
            2 / (2 - lambda_2 - lambda_n), with the second-largest and the smallest eigenvalue.

    Values may be float32 or float64.
    """

    def __init__(self, topology: Topology, rank: int, gamma: float = 1.0) -> None:
        if not 0 < gamma <= 2:
            raise ValueError(f"gamma is {gamma}; it must be in (0, 2]")
        super().__init__(topology, rank)
        self._gamma = gamma

    def _check_topology(self, topology: Topology) -> None:
        if not topology.is_doubly_stochastic:
            raise TopologyError(
                f"gossip averaging needs a doubly stochastic mixing matrix, which "
                f"'{topology.name}' has not: take weights='metropolis' or push-sum"
            )

    def _round(self, x: FloatArray) -> GossipRound:
        replies = yield from _everything(self, x, b"")
        row = self.topology.matrix(self._step)[self.rank]
        mixed = x * x.dtype.type(1 - (1 - row[self.rank]) * self._gamma)
        for source in sorted(replies):
            mixed += x.dtype.type(self._gamma * row[source]) * replies[source].view(x.dtype)
        x[:] = mixed


class WeightedGossip(Gossip):
    """Base class of push-sum: the weights of all ranks add up to the world size."""

    def _check_topology(self, topology: Topology) -> None:
        if not topology.is_column_stochastic:
            raise TopologyError(
                f"push-sum needs a column-stochastic mixing matrix, which '{topology.name}' has "
                "not: each column, the weights that one rank hands on, must add up to 1; take "
                "weights='uniform'"
            )

    def state_dict(self) -> dict[str, Any]:
        """See `Gossip.state_dict`."""
        return super().state_dict() | {"weight": self.weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Gossip.load_state_dict`."""
        check_mapping(state)
        weight = state.get("weight")
        if not isinstance(weight, float) or not 0 < weight < math.inf:
            raise StateError(
                f"the state's 'weight' is {weight!r:.80}; it must be a finite number above 0: load "
                "an earlier checkpoint"
            )
        super().load_state_dict(state)
        self.weight = weight


class PushSum(WeightedGossip):
    """x_i <- sum_j P_ij x_j and w_i <- sum_j P_ij w_j; x / w estimates the average.

    Kempe, Dobra, Gehrke: "Gossip-Based Computation of Aggregate Information" (FOCS 2003), protocol
    push-sum. With an optimizer's step on x before each round, and gradients taken at x / w, it is
    SGP: Assran, Loizou, Ballas, Rabbat: "Stochastic Gradient Push for Distributed Deep Learning"
    (ICML 2019), algorithm 1.

    Args:
        topology: column-stochastic, so that sums are kept; edges may be directed, and may change
            with the step.
        rank: this rank.

    Values may be float32 or float64. State: ``weight``.

    Deviations: values travel unscaled, as the receiver knows the weights, too. w travels, in
    8 bytes, only where a row of the matrices does not add up to 1; otherwise it stays 1.
    """

    def debias(self, x: FloatArray) -> FloatArray:
        """x / w: a new array."""
        return x / x.dtype.type(self.weight)

    def _round(self, x: FloatArray) -> GossipRound:
        weighted = not self.topology.is_doubly_stochastic
        tail = np.float64(self.weight).tobytes() if weighted else b""
        replies = yield from _everything(self, x, tail)
        row = self.topology.matrix(self._step)[self.rank]
        mixed = x * x.dtype.type(row[self.rank])
        weight = self.weight * row[self.rank]
        for source in sorted(replies):
            reply = replies[source]
            mixed += x.dtype.type(row[source]) * reply[: x.nbytes].view(x.dtype)
            if weighted:
                weight += row[source] * float(reply[x.nbytes :].view(np.float64)[0])
        x[:] = mixed
        if weighted:
            self.weight = float(weight)


def _everything(
    gossip: Gossip, x: FloatArray, tail: bytes
) -> Generator[Exchange, Mapping[int, ByteArray], Mapping[int, ByteArray]]:
    """Send all values and ``tail`` to every peer."""
    peers = gossip.topology.peers(gossip.rank, gossip.step)
    # Replies come when all messages have left, so x itself may travel.
    message = np.concatenate([as_bytes(x), as_bytes(tail)]) if tail else as_bytes(x)
    messages = dict.fromkeys(peers.out, message)
    return (yield from gossip.exchange("", messages, peers.in_, message.nbytes))
