"""Topologies: the peers of each rank in each round, and the mixing weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gradcomp.errors import TopologyError

__all__ = ["WEIGHTS", "Matrix", "Peers", "Topology", "mixing_matrix"]

Matrix = npt.NDArray[np.float64]
"""[n, n]: row i has the weights that rank i gives to received values; its own is on the diagonal."""

_TOLERANCE = 1e-9

WEIGHTS = ("auto", "uniform", "metropolis", "best_constant")
"""Rules that derive weights from a graph; see `mixing_matrix`."""


class Peers(NamedTuple):
    """The peers of one rank in one round.

    Attributes:
        out: ranks that it sends to.
        in_: ranks that it receives from, in ascending order.
    """

    out: tuple[int, ...]
    in_: tuple[int, ...]


class Topology:
    """A periodic sequence of mixing matrices: one for a static graph, several for a changing one.

    Args:
        name: name in messages and plots.
        matrices: at least one, all of the same shape; not negative.
        out: for each round and rank, the peers it sends to, in order. By default ascending.

    Raises:
        TopologyError: a matrix is not square, is negative or not finite, or has no weights for a
            rank.

    Examples:
        >>> from gradcomp.gossip import make_topology
        >>> ring = make_topology("ring", 4)
        >>> ring.peers(0)
        Peers(out=(1, 3), in_=(1, 3))
        >>> round(ring.spectral_gap(), 3)
        0.667
    """

    def __init__(
        self,
        name: str,
        matrices: Sequence[npt.ArrayLike],
        out: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> None:
        self.name = name
        self._matrices = [_checked(name, matrix) for matrix in matrices]
        if not self._matrices or len({matrix.shape for matrix in self._matrices}) != 1:
            raise TopologyError(f"'{name}' needs at least one matrix, and all of one shape")
        self._out = out if out is not None else [_senders(matrix.T) for matrix in self._matrices]
        self._in = [_senders(matrix) for matrix in self._matrices]

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, world_size={self.world_size}, period={self.period})"

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self._matrices[0])

    @property
    def period(self) -> int:
        """Number of rounds after which the graph repeats; 1 for a static one."""
        return len(self._matrices)

    def matrix(self, step: int = 0) -> Matrix:
        """The weights of one round; read-only."""
        return self._matrices[step % self.period]

    def peers(self, rank: int, step: int = 0) -> Peers:
        """The peers of a rank in one round."""
        at = step % self.period
        return Peers(tuple(self._out[at][rank]), tuple(self._in[at][rank]))

    @cached_property
    def digest(self) -> str:
        """A digest of weights and peers, by which ranks compare their topologies."""
        out = [[[int(peer) for peer in peers] for peers in of_round] for of_round in self._out]
        digest = blake2b(repr(out).encode(), digest_size=8)
        for matrix in self._matrices:  # eigenvalues may differ in the last bit between machines
            digest.update(np.round(matrix, 9).tobytes())
        return digest.hexdigest()

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether any two ranks give each other's values the same weight, in every round."""
        return all(np.allclose(matrix, matrix.T, atol=_TOLERANCE) for matrix in self._matrices)

    @cached_property
    def is_column_stochastic(self) -> bool:
        """Whether columns add up to 1, so that mixing keeps the sum; push-sum needs this."""
        return all(np.allclose(matrix.sum(0), 1, atol=_TOLERANCE) for matrix in self._matrices)

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        """Whether rows add up to 1, too, so that mixing keeps the average without push-sum."""
        rows = all(np.allclose(matrix.sum(1), 1, atol=_TOLERANCE) for matrix in self._matrices)
        return rows and self.is_column_stochastic

    def spectral_gap(self, *, signed: bool = False) -> float:
        """Speed of agreement, in [0, 1]: 0 never, 1 at once.

        1 - |lambda_2|^(1/period), with lambda_2 the eigenvalue of second-largest magnitude of the
        product of one period's matrices: asymptotically, a round multiplies differences by 1 - gap.

        Args:
            signed: return 1 - lambda_2 with the signed second-largest eigenvalue of a static,
                symmetric graph, as the authors of PowerGossip do. This is not the speed where the
                smallest eigenvalue has a larger magnitude.

        Raises:
            TopologyError: ``signed``, and the graph is not static and symmetric.
        """
        if signed and not (self.period == 1 and self.is_symmetric):
            raise TopologyError(
                f"'{self.name}' is not static and symmetric, so its eigenvalues have no order; "
                "leave signed at False"
            )
        if self.world_size == 1:
            return 1.0
        if signed:
            return 1.0 - float(np.linalg.eigvalsh(self._matrices[0])[-2])
        product = np.eye(self.world_size)
        for matrix in self._matrices:
            product = matrix @ product
        second = float(np.sort(np.abs(np.linalg.eigvals(product)))[-2])
        # Where ranks agree exactly after a period, rounding leaves about 1e-16 instead of 0, which
        # the root would enlarge.
        second = 0.0 if second < 1e-7 else min(second, 1.0)
        return 1.0 - float(second ** (1 / self.period))


def mixing_matrix(
    out: Sequence[Iterable[int]], weights: str = "auto", *, name: str = "graph"
) -> Matrix:
    """Weights of a graph.

    Args:
        out: for each rank, the peers that it sends to; a repeated peer counts twice.
        weights: "uniform": a sender gives itself and each peer the same part, 1 / (1 + peers),
            which is column-stochastic; "metropolis": 1 / (1 + the larger number of peers of the
            two), the Metropolis-Hastings weights of Xiao, Boyd, Kim: "Distributed average consensus
            with least-mean-square deviation" (2007); "best_constant": I - a L with the Laplacian L
            and the best a, Xiao, Boyd: "Fast linear iterations for distributed averaging" (2004),
            which is the fastest where all edges are alike, as in a ring; a is at most 1 over the
            largest number of peers, so that no weight is negative;
            "auto": uniform where all ranks have the same number of peers, both ways, or where edges
            are directed, else metropolis.

    Raises:
        TopologyError: ``weights`` is none of these, or "metropolis" or "best_constant" with
            directed edges.
    """
    if weights not in WEIGHTS:
        raise TopologyError(f"weights are {weights!r}; they must be one of {', '.join(WEIGHTS)}")
    n = len(out)
    edges = np.zeros((n, n))
    for rank, peers in enumerate(out):
        for peer in peers:
            edges[peer, rank] += 1
    sent = edges.sum(0)
    undirected = np.array_equal(edges, edges.T)
    if weights == "auto":
        regular = bool((sent == sent[:1]).all() and (edges.sum(1) == sent).all())
        weights = "metropolis" if undirected and not regular else "uniform"
    if weights == "uniform":
        result: Matrix = (edges + np.eye(n)) / (1 + sent)
        return result
    if not undirected:
        raise TopologyError(
            f"'{name}' has directed edges, which '{weights}' weights do not take; use 'uniform'"
        )
    part: Matrix
    if weights == "metropolis":
        part = edges / (1 + np.maximum(sent, sent[:, None]))
    else:
        part = edges * _best_constant(np.diag(sent) - edges)
    diagonal: Matrix = np.diag(1 - part.sum(0))
    return part + diagonal


def _best_constant(laplacian: Matrix) -> float:
    if len(laplacian) == 1:
        return 0.0
    values = np.linalg.eigvalsh(laplacian)
    return min(2 / float(values[-1] + values[1]), 1 / float(laplacian.max()))


def _senders(matrix: Matrix) -> list[list[int]]:
    """For each row, the other columns that are not zero."""
    return [[int(j) for j in np.flatnonzero(row) if j != i] for i, row in enumerate(matrix)]


def _checked(name: str, matrix: npt.ArrayLike) -> Matrix:
    result = np.array(matrix, np.float64)
    if result.ndim != 2 or result.shape[0] != result.shape[1] or not result.size:
        raise TopologyError(f"the matrix of '{name}' has shape {result.shape}; it must be square")
    if not np.isfinite(result).all() or (result < 0).any():
        raise TopologyError(
            f"the matrix of '{name}' has weights that are negative or not finite; weights are from "
            "0 to 1"
        )
    empty = np.flatnonzero(result.sum(1) == 0)
    if empty.size:
        raise TopologyError(f"the matrix of '{name}' has no weights in row {empty[0]}")
    result.setflags(write=False)
    return result
