"""The reference implementations' cases of gossip: graphs, codecs, and the ranks of PowerGossip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcomp.gossip import PowerGossip, Topology, make_topology, run_gossip
from gradcomp.gossip.base import Tensor
from support.reference import Array, reference

# Topologies by the names that the reference has for its graphs.
GRAPHS = {
    "DynamicDirectedExponentialGraph": "dde",
    "DynamicBipartiteExponentialGraph": "dbe",
    "DynamicDirectedLinearGraph": "ddl",
    "DynamicBipartiteLinearGraph": "dbl",
    "NPeerDynamicDirectedExponentialGraph": "npdde",
}


class Case:
    """One case: its description, arrays, and how close values must be."""

    def __init__(self, name: str) -> None:
        self.about, self.arrays = reference(name)
        self.config = self.about["config"]
        self.steps: int = self.about["steps"]
        self.shapes = {name: tuple(shape) for name, shape in self.about["tensors"].items()}

    def flat(self, kind: str, *at: int) -> Array:
        """The tensors of one rank, one after the other."""
        prefix = f"{kind}." if f"{kind}.{next(iter(self.shapes))}" in self.arrays else None
        parts = [self.arrays[f"{prefix}{name}" if prefix else kind][at] for name in self.shapes]
        return np.concatenate([part.reshape(-1) for part in parts])

    def close(self, actual: Array, expected: Array, what: str, **tolerance: float) -> None:
        limits = {key: self.about["tolerance"][key] for key in ("rtol", "atol")} | tolerance
        np.testing.assert_allclose(actual, expected, err_msg=what, **limits)

    def topology(self) -> Topology:
        topology = make_topology(self.config["topology"], self.about["world_size"])
        np.testing.assert_allclose(
            topology.matrix(), self.arrays["mixing_matrix"], rtol=0, atol=1e-12
        )
        return topology

    def codecs(self) -> dict[str, str]:
        if self.config["compressor"]["type"] == "sign":
            return dict.fromkeys(self.shapes, "sign")
        chosen = self.about["details"]["k_per_tensor"]
        return {name: f"topk(k={k})" for name, k in chosen.items()}

    def run(
        self, ranks: list[Any], states: Mapping[str, str] | None = None, first: int = 0
    ) -> list[Any]:
        """Run from the values before step ``first`` on, and compare values after every step."""
        values = [
            self.flat("x", first - 1, rank) if first else self.flat("x_init", rank)
            for rank in range(len(ranks))
        ]
        for step in range(first, self.steps):
            run_gossip([one.round(x) for one, x in zip(ranks, values, strict=True)])
            for rank, x in enumerate(values):
                self.close(x, self.flat("x", step, rank), f"step {step}, rank {rank}")
                for ours, theirs in (states or {}).items():
                    kept = ranks[rank].state_dict()[ours]
                    actual = np.concatenate([kept[name] for name in self.shapes])
                    self.close(actual, self.flat(theirs, step, rank), f"{ours}, step {step}")
        return values


class Replayed(PowerGossip):
    """PowerGossip with the random factors of a case."""

    case: Case

    def draw(self, peer: int, one: Tensor) -> Array:
        edges = self.case.arrays["edges"].tolist()
        edge = edges.index(sorted((self.rank, peer)))
        drawn = self.case.arrays["redraw"][self.step_of_case, edge]
        return drawn[: self._size(self._in, one)].astype(np.float32)

    @property
    def step_of_case(self) -> int:
        return self._iteration - 1  # the array begins with iteration 1


def factors(case: Case, buffer: Array, side: int) -> dict[str, Array]:
    """The reference's flat buffer of one edge, [n, r] of each tensor, as the state has it."""
    found, begin = {}, 0
    for name, shape in case.shapes.items():
        rank = case.about["details"]["factor_layout"]["r"][name]
        length = shape[0] if side == 0 else int(np.prod(shape[1:]))
        part = buffer[begin : begin + length * rank].reshape(length, rank)
        found[name] = np.ascontiguousarray(part.T).reshape(-1)
        begin += length * rank
    assert begin == buffer.size
    return found


def powergossip_ranks(case: Case) -> list[PowerGossip]:
    """All ranks, as they are after the reference's first step."""
    config, topology = case.config, case.topology()
    ranks = []
    for rank in range(topology.world_size):
        one = Replayed(
            topology,
            rank,
            case.shapes,
            compression_rank=config["rank"],
            num_iterations=config["num_iterations"],
            warm_start=config["warm_start"],
            round_weights=config["round_weights"],
            gamma=config["diffusion_rate"],
        )
        one.case = case
        kept: dict[str, dict[str, Array]] = {"p": {}, "q": {}}
        for edge, (low, high) in enumerate(case.arrays["edges"].tolist()):
            if rank in (low, high):
                peer = low + high - rank
                for side, kind in enumerate("pq"):
                    for name, factor in factors(
                        case, case.arrays[f"{kind}_init"][edge], side
                    ).items():
                        kept[kind][f"{peer}/{name}"] = factor
        # The reference's first step does nothing but count its iterations.
        one.load_state_dict({"step": 1, "iteration": config["num_iterations"], **kept})
        ranks.append(one)
    return ranks
