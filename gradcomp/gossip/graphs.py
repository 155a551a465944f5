"""Graphs of topologies, by name.

Assran, Loizou, Ballas, Rabbat: "Stochastic Gradient Push for Distributed Deep Learning" (ICML 2019)
has the exponential graphs that change in each round; Vogels, Karimireddy, Jaggi: "Practical
Low-Rank Communication Compression in Decentralized Deep Learning" (NeurIPS 2020) the static ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from gradcomp.errors import TopologyError
from gradcomp.gossip.topology import Topology, mixing_matrix

__all__ = [
    "TOPOLOGIES",
    "circulant",
    "from_edges",
    "from_matrix",
    "make_topology",
    "watts_strogatz",
]

_Rounds = list[list[list[int]]]
"""For each round and rank the peers that it sends to."""


def make_topology(
    name: str, world_size: int, *, peers_per_step: int = 1, weights: str = "auto", seed: int = 0
) -> Topology:
    """A topology by name.

    Args:
        name: one of `TOPOLOGIES`.
        world_size: number of ranks, at least 1. ``hypercube`` takes powers of two, ``dbe`` and
            ``dbl`` even numbers, ``social`` takes 32; a lone rank is fine everywhere else.
        peers_per_step: number of ranks that a rank sends to in a round, where the graph changes.
        weights: see `mixing_matrix`.
        seed: seed of ``watts_strogatz``; the same on every rank.

    Raises:
        TopologyError: ``name`` is unknown, or the graph does not take such a world size, number of
            peers or weights; the message says what it takes.
    """
    if name not in TOPOLOGIES:
        known = ", ".join(TOPOLOGIES)
        raise TopologyError(f"no topology is called '{name}'; known: {known}")
    if world_size < 1:
        raise TopologyError(f"world_size is {world_size}; it must be at least 1")
    if not 1 <= peers_per_step <= max(1, world_size - 1):
        raise TopologyError(
            f"peers_per_step is {peers_per_step}; it must be from 1 to {max(1, world_size - 1)} "
            f"for {world_size} ranks"
        )
    if peers_per_step != 1 and name not in _ROTATING:
        raise TopologyError(
            f"peers_per_step is {peers_per_step}, and '{name}' does not change from round to "
            f"round; it goes with {', '.join(_ROTATING)}"
        )
    if name == "watts_strogatz":
        return watts_strogatz(world_size, seed=seed, weights=weights)
    return _topology(name, _GRAPHS[name](world_size, peers_per_step), weights)


def circulant(
    world_size: int, rounds: Sequence[Sequence[int]], *, weights: str = "auto", name: str = ""
) -> Topology:
    """A graph in which every rank sends to the ranks at the same distances.

    Distances that lead to the rank itself, or again to the same peer in one round, are left out.

    Args:
        rounds: the distances of each round.
    """
    return _topology(name or "circulant", _circulant(world_size, rounds), weights)


def from_edges(
    world_size: int,
    edges: Iterable[tuple[int, int]],
    *,
    directed: bool = False,
    weights: str = "auto",
    name: str = "custom",
) -> Topology:
    """A static graph from pairs of ranks, (sender, receiver) where they have a direction.

    Raises:
        TopologyError: a pair names the same rank twice or one outside of [0, world_size).
    """
    out: list[list[int]] = [[] for _ in range(world_size)]
    for sender, receiver in edges:
        if not (0 <= sender < world_size and 0 <= receiver < world_size) or sender == receiver:
            raise TopologyError(
                f"the edge ({sender}, {receiver}) must join two ranks in [0, {world_size})"
            )
        for source, target in [(sender, receiver), *([] if directed else [(receiver, sender)])]:
            if target not in out[source]:
                out[source].append(target)
    return _topology(name, [[sorted(peers) for peers in out]], weights)


def from_matrix(*matrices: npt.ArrayLike, name: str = "custom") -> Topology:
    """A topology with the given weights of each round; see `Matrix` for rows and columns."""
    return Topology(name, matrices)


def watts_strogatz(
    world_size: int,
    *,
    neighbours: int = 2,
    rewiring: float = 0.9,
    seed: int = 0,
    weights: str = "auto",
) -> Topology:
    """A small-world graph: a ring lattice with edges that are rewired at random.

    Watts, Strogatz: "Collective dynamics of 'small-world' networks" (Nature 1998). Deviation:
    graphs that are not connected are drawn again.

    Args:
        neighbours: neighbours of each rank in the lattice: even, at least 2; fewer in small worlds.
        rewiring: probability in [0, 1] that an edge goes to a random rank instead.
        seed: the same on every rank.
    """
    if neighbours < 2 or neighbours % 2 or not 0 <= rewiring <= 1:
        raise TopologyError(
            f"neighbours is {neighbours} and rewiring {rewiring}; they must be even, at least 2, "
            "and in [0, 1]"
        )
    rng = np.random.default_rng([seed, world_size])
    for _ in range(1000):
        edges = _rewired(world_size, neighbours, rewiring, rng)
        if _is_connected(world_size, edges):
            return from_edges(world_size, sorted(edges), weights=weights, name="watts_strogatz")
    raise TopologyError(
        f"no connected graph of {world_size} ranks was found in 1000 tries; take more neighbours "
        f"than {neighbours}, or a smaller rewiring than {rewiring}"
    )


def _topology(name: str, rounds: _Rounds, weights: str) -> Topology:
    matrices = [mixing_matrix(out, weights, name=name) for out in rounds]
    once = [[list(dict.fromkeys(peers)) for peers in out] for out in rounds]
    return Topology(name, matrices, once)


def _circulant(n: int, rounds: Sequence[Sequence[int]]) -> _Rounds:
    result = []
    for distances in rounds:
        steps = dict.fromkeys(distance % n for distance in distances if distance % n)
        result.append([[(rank + step) % n for step in steps] for rank in range(n)])
    return result


def _rotating(n: int, distances: Sequence[int], peers: int) -> _Rounds:
    """``peers`` of the distances in each round, in turn; one period."""
    count = len(distances)
    period = max(1, count // math.gcd(count, peers))
    rounds = [[distances[(at * peers + k) % count] for k in range(peers)] for at in range(period)]
    return _circulant(n, rounds)


def _powers(base: int, n: int) -> list[int]:
    """The powers of ``base`` below n, and always 1."""
    found = [1]
    while found[-1] * base < n:
        found.append(found[-1] * base)
    return found


def _both_ways(distances: Iterable[int]) -> list[int]:
    return [signed for distance in distances for signed in (distance, -distance)]


def _ring(n: int, peers: int) -> _Rounds:
    return _circulant(n, [[1, -1]])


def _unidirectional_ring(n: int, peers: int) -> _Rounds:
    return _circulant(n, [[-1]])


def _torus(n: int, peers: int) -> _Rounds:
    cols = next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)
    rows = n // cols

    def at(row: int, col: int) -> int:
        return row % rows * cols + col % cols

    out = []
    for rank in range(n):
        row, col = divmod(rank, cols)
        around = [at(row - 1, col), at(row + 1, col), at(row, col - 1), at(row, col + 1)]
        out.append([peer for peer in around if peer != rank])
    return [out]


def _full(n: int, peers: int) -> _Rounds:
    return _circulant(n, [range(1, n)])


def _star(n: int, peers: int) -> _Rounds:
    return [[list(range(1, n)), *([0] for _ in range(1, n))]]


def _hypercube(n: int, peers: int) -> _Rounds:
    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        raise TopologyError(
            f"'hypercube' takes a power of two of ranks, not {n}: {below} and {2 * below} are "
            "the nearest"
        )
    return [[[rank ^ (1 << bit) for bit in range(n.bit_length() - 1)] for rank in range(n)]]


def _exponential(n: int, peers: int) -> _Rounds:
    return _circulant(n, [_powers(2, n)])


def _dde(n: int, peers: int) -> _Rounds:
    return _rotating(n, _both_ways(_powers(2, n)), peers)


def _npdde(n: int, peers: int) -> _Rounds:
    distances = [j * power for power in _powers(peers + 1, n) for j in range(1, peers + 1)]
    return _rotating(n, distances, peers)


def _even(name: str, n: int) -> None:
    if n % 2 and n > 1:
        raise TopologyError(
            f"'{name}' takes an even number of ranks, not {n}: even ranks send to odd ones only, "
            f"and odd ones to even ones. Take {n - 1} or {n + 1} ranks, or 'dde'"
        )


def _dbe(n: int, peers: int) -> _Rounds:
    _even("dbe", n)
    distances = [1, *(1 + power for power in _powers(2, n)[1:])]
    return _rotating(n, _both_ways(distances), peers)


def _ddl(n: int, peers: int) -> _Rounds:
    return _rotating(n, _both_ways(range(1, max(n, 2), 2)), peers)


def _dbl(n: int, peers: int) -> _Rounds:
    _even("dbl", n)
    return _ddl(n, peers)


# Events that each of 18 women attended (bit e: event e), in the order of the authors.
# Davis, Gardner, Gardner: "Deep South" (1941), figure 3.
_ATTENDANCE = (
    *(0b00000110111111, 0b00000011110111, 0b00000111111110, 0b00000011111101, 0b00000001011100),
    *(0b00000010110100, 0b00000011110000, 0b00000110100000, 0b00000111010000, 0b00100111000000),
    *(0b00101110000000, 0b11101110000000, 0b11101111000000, 0b11111101100000, 0b00111011000000),
    *(0b00000110000000, 0b00010100000000, 0b00010100000000),
)


def _social(n: int, peers: int) -> _Rounds:
    if n != 32:
        raise TopologyError(
            f"'social' is a network of 18 women and 14 events: it takes 32 ranks, not {n}"
        )
    out: list[list[int]] = [[] for _ in range(n)]
    for woman, events in enumerate(_ATTENDANCE):
        for event in range(14):
            if events >> event & 1:
                out[woman].append(18 + event)
                out[18 + event].append(woman)
    return [out]


def _rewired(
    n: int, neighbours: int, rewiring: float, rng: np.random.Generator
) -> set[tuple[int, int]]:
    edges = {
        (min(rank, peer), max(rank, peer))
        for distance in range(1, neighbours // 2 + 1)
        for rank in range(n)
        if (peer := (rank + distance) % n) != rank
    }
    for edge in sorted(edges):
        free = [(min(edge[0], peer), max(edge[0], peer)) for peer in range(n) if peer != edge[0]]
        free = [other for other in free if other not in edges]
        if free and rng.random() < rewiring:
            edges.remove(edge)
            edges.add(free[int(rng.integers(len(free)))])
    return edges


def _is_connected(n: int, edges: Iterable[tuple[int, int]]) -> bool:
    group = list(range(n))
    for first, second in edges:
        old, new = group[first], group[second]
        group = [new if member == old else member for member in group]
    return len(set(group)) == 1


_ROTATING = ("dde", "npdde", "dbe", "ddl", "dbl")

_GRAPHS: dict[str, Callable[[int, int], _Rounds]] = {
    "ring": _ring,
    "unidirectional_ring": _unidirectional_ring,
    "torus": _torus,
    "full": _full,
    "star": _star,
    "hypercube": _hypercube,
    "exponential": _exponential,
    "dde": _dde,
    "npdde": _npdde,
    "dbe": _dbe,
    "ddl": _ddl,
    "dbl": _dbl,
    "social": _social,
}
"""Name -> function of the world size and the peers per step that makes the rounds of a graph."""

TOPOLOGIES = (*_GRAPHS, "watts_strogatz")
"""Names for `make_topology`.

``ring`` (both neighbours), ``unidirectional_ring`` (each receives from the next rank), ``torus``
(as square as the number of ranks allows; a ring for a prime number), ``full``, ``star``
(around rank 0), ``hypercube``, ``exponential`` (distances 1, 2, 4, ... in every round), ``dde``
(dynamic directed exponential: +1, -1, +2, -2, +4, ... in turn), ``npdde`` (its variant
with n peers a step: j (n+1)^i for j = 1..n in round i), ``dbe`` (bipartite exponential: +1, -1, +3,
-3, +5, -5, +9, ...), ``ddl`` and ``dbl`` (linear, and its bipartite form: odd distances, both ways),
``watts_strogatz``, ``social`` (the 32-node network of Davis et al.)."""
