"""PowerGossip: low-rank differences of two peers' matrices, by power iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, FloatArray, as_bytes
from gradcomp.codec.codec import derive_stream
from gradcomp.errors import StateError, TopologyError
from gradcomp.exchange.algorithms.low_rank import matrix_shape
from gradcomp.exchange.arrays_of_state import arrays_like, check_mapping
from gradcomp.exchange.rounds import GossipRound
from gradcomp.gossip.base import Gossip, Layout, Tensor, count_of
from gradcomp.gossip.topology import Topology

__all__ = ["PowerGossip"]

_P, _Q = "p", "q"


class PowerGossip(Gossip):
    """Both ends of an edge estimate a low-rank part of their difference and move towards each other.

    Vogels, Karimireddy, Jaggi: "Practical Low-Rank Communication Compression in Decentralized Deep
    Learning" (NeurIPS 2020), algorithm 1. For each edge and each matrix X, in an even iteration:

    1. ``p = orthonormal(p)``: the p of the last iteration; random at first, or always if not
       ``warm_start``. With ``round_weights``: ``p = sign(p) / sqrt(length)``.
    2. Each end sends ``X^T p`` of its X to the other.
    3. ``q = X_high^T p - X_low^T p``, for the ends of higher and lower rank: the same bits at both ends.
    4. ``X = X - W_ij gamma p q^T`` at the end of higher rank, ``X = X + W_ij gamma p q^T`` at the other.

    An odd iteration has p and q swapped, and X transposed, as in a power method: it begins with the q of
    step 3. A round has ``num_iterations`` of them.

    Args:
        topology: symmetric and doubly stochastic; it may change with the step: factors belong to
            edges.
        rank: this rank.
        shapes: the tensors' shapes by name; a matrix is [shape[0], rest].
        compression_rank: rank of the factors, at least 1; limited by the smaller side of a matrix.
        num_iterations: exchanges in a round, at least 1.
        warm_start: start an iteration from the factor of the last one, not from random numbers.
        round_weights: take the factor's signs, see step 1; needs compression_rank 1.
        gamma: step size in (0, 2]; 1 in the paper, without tuning.
        seed: seed of the first factors; the same on every rank.

    State: ``iteration``; ``p`` and ``q`` by "peer/tensor", flat, one vector after the other: equal
    on both ends.

    Deviations: all products of an iteration use the matrices at its beginning, as in the authors'
    code; the first round exchanges, while theirs leaves it out. Tensors of fewer
    than two dimensions are averaged dense once a round, with step size 1. First factors are uniform
    in [-1, 1) instead of normal.
    """

    def __init__(
        self,
        topology: Topology,
        rank: int,
        shapes: Mapping[str, Sequence[int]],
        *,
        compression_rank: int = 1,
        num_iterations: int = 1,
        warm_start: bool = True,
        round_weights: bool = False,
        gamma: float = 1.0,
        seed: int = 0,
    ) -> None:
        for name, value in (
            ("compression_rank", compression_rank),
            ("num_iterations", num_iterations),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if round_weights and compression_rank != 1:
            raise ValueError(
                f"compression_rank is {compression_rank}; round_weights goes with 1 alone, as "
                "signs of several vectors are not orthonormal"
            )
        if not 0 < gamma <= 2:
            raise ValueError(f"gamma is {gamma}; it must be in (0, 2]")
        super().__init__(topology, rank)
        self.layout = Layout(shapes)
        self._rank = compression_rank
        self._iterations = num_iterations
        self._warm_start = warm_start
        self._round_weights = round_weights
        self._gamma = gamma
        self._seed = seed
        self._iteration = 0
        self._factors: dict[str, dict[str, FloatArray]] = {_P: {}, _Q: {}}

    def _check_topology(self, topology: Topology) -> None:
        if not (topology.is_symmetric and topology.is_doubly_stochastic):
            raise TopologyError(
                f"PowerGossip needs a symmetric, doubly stochastic mixing matrix, which "
                f"'{topology.name}' has not: both ends of an edge move alike. Take ring, torus, "
                "full, hypercube, or an undirected graph with weights='metropolis'"
            )

    def _round(self, x: FloatArray) -> GossipRound:
        peers = self.topology.peers(self.rank, self._step)
        row = self.topology.matrix(self._step)[self.rank]
        small = self.layout.small_values(x)
        for at in range(self._iterations):
            dense = small if at == 0 else small[:0]
            products = {peer: self._products(x, peer) for peer in peers.out}
            messages = {
                peer: np.concatenate([as_bytes(dense), *map(as_bytes, of_peer)])
                for peer, of_peer in products.items()
            }
            nbytes = dense.nbytes + 4 * sum(
                self._size(self._out, tensor) for tensor in self.layout.large
            )
            replies = yield from self.exchange(f".{at}", messages, peers.in_, nbytes)
            if at == 0:
                mixed = small * np.float32(row[self.rank])
                for peer in sorted(replies):
                    theirs = replies[peer][: small.nbytes].view(np.float32)
                    mixed += np.float32(row[peer]) * theirs
                self.layout.set_small(x, mixed)
            for peer in sorted(replies):
                self._move(x, peer, float(row[peer]), products[peer], replies[peer][dense.nbytes :])
            self._iteration += 1

    @property
    def _in(self) -> str:
        return _P if self._iteration % 2 == 0 else _Q

    @property
    def _out(self) -> str:
        return _Q if self._iteration % 2 == 0 else _P

    def _size(self, kind: str, tensor: Tensor) -> int:
        rows, cols = matrix_shape(tensor.key.shape)
        return min(self._rank, rows, cols) * (rows if kind == _P else cols)

    def _products(self, x: FloatArray, peer: int) -> list[FloatArray]:
        """This rank's term of out, for each large tensor."""
        products = []
        for tensor in self.layout.large:
            rows, cols = shape = matrix_shape(tensor.key.shape)
            known = self._known(peer, tensor)
            if self._round_weights:
                known[:] = np.where(known < 0, -1, 1) / np.sqrt(known.size)
            else:
                _core.orthonormalize(known, min(self._rank, rows, cols), "gram_schmidt")
            out = np.empty(self._size(self._out, tensor), np.float32)
            multiply = _core.multiply_transposed if self._in == _P else _core.multiply
            multiply(tensor.of(x).reshape(shape), None, known, out)
            products.append(out)
        return products

    def _known(self, peer: int, tensor: Tensor) -> FloatArray:
        """The factor of the last iteration, or else random numbers, equal at both ends."""
        factors, key = self._factors[self._in], f"{peer}/{tensor.key.name}"
        if key not in factors or not self._warm_start:
            factors[key] = self.draw(peer, tensor)
        return factors[key]

    def draw(self, peer: int, tensor: Tensor) -> FloatArray:
        """A random factor for an edge in this iteration."""
        low, high = sorted((self.rank, peer))
        edge = derive_stream(self._seed, low, high)
        stream = derive_stream(edge, self._iteration, tensor.key.tensor_id)
        return _core.uniform_signed(stream, self._size(self._in, tensor))

    def _move(
        self,
        x: FloatArray,
        peer: int,
        weight: float,
        products: Sequence[FloatArray],
        reply: ByteArray,
    ) -> None:
        is_high = self.rank > peer
        begin = 0
        for tensor, mine in zip(self.layout.large, products, strict=True):
            theirs = np.frombuffer(reply[begin : begin + mine.nbytes].tobytes(), np.float32)
            begin += mine.nbytes
            with np.errstate(over="ignore", invalid="ignore"):
                out = mine - theirs if is_high else theirs - mine
                step = np.float32((-weight if is_high else weight) * self._gamma) * out
            key = f"{peer}/{tensor.key.name}"
            self._factors[self._out][key] = out
            factors = {self._in: self._factors[self._in][key], self._out: step}
            matrix = tensor.of(x).reshape(matrix_shape(tensor.key.shape))
            _core.outer(factors[_P], factors[_Q], added=matrix)
            # Factors must stay finite; the matrices keep NaN and Inf.
            _core.zero_nonfinite(out)

    def state_dict(self) -> dict[str, Any]:
        """See `Gossip.state_dict`."""
        kept = {
            kind: {key: array.copy() for key, array in factors.items()}
            for kind, factors in self._factors.items()
        }
        return super().state_dict() | {"iteration": self._iteration} | kept

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Gossip.load_state_dict`."""
        check_mapping(state)
        tensors = {tensor.key.name: tensor for tensor in self.layout.large}
        kept = {}
        for kind in (_P, _Q):
            sizes = {}
            factors = state.get(kind)
            for key in factors if isinstance(factors, Mapping) else ():
                name = key.partition("/")[2] if isinstance(key, str) else None
                if name not in tensors:
                    raise StateError(
                        f"the state has a factor '{kind}' of '{key}', and no such "
                        "tensor is compressed here"
                    )
                sizes[key] = self._size(kind, tensors[name])
            kept[kind] = arrays_like(state, kind, sizes)
        iteration = count_of(state, "iteration")
        super().load_state_dict(state)
        self._factors = kept
        self._iteration = iteration
