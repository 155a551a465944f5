"""Schedules of topologies by round."""

from __future__ import annotations

from collections.abc import Mapping

from gradcomp.errors import TopologyError
from gradcomp.gossip.graphs import make_topology
from gradcomp.gossip.topology import Topology

__all__ = ["PeersSchedule", "make_topologies", "topology_at"]

PeersSchedule = int | Mapping[int, int]
"""Number of peers that a rank sends to in a round, or such numbers by their first round."""


def make_topologies(
    name: str,
    world_size: int,
    *,
    peers_per_step: PeersSchedule = 1,
    weights: str = "auto",
    seed: int = 0,
) -> dict[int, Topology]:
    """First round -> topology, one for each number of peers.

    Assran, Loizou, Ballas, Rabbat: "Stochastic Gradient Push for Distributed Deep Learning" (ICML
    2019) send to more peers in early epochs than later.

    Args:
        name, world_size, weights, seed: as for `make_topology`.
        peers_per_step: such as ``{0: 2, 1000: 1}``: two peers, and one from round 1000 on.

    Raises:
        TopologyError: the schedule does not begin with round 0, or as for `make_topology`.
    """
    schedule = {0: peers_per_step} if isinstance(peers_per_step, int) else dict(peers_per_step)
    if 0 not in schedule or min(schedule) < 0:
        raise TopologyError(
            f"peers_per_step is {schedule}; it must be a number of peers, or such numbers by the "
            "round from which each holds, the first of them 0, such as {0: 2, 1000: 1}"
        )
    return {
        first: make_topology(name, world_size, peers_per_step=peers, weights=weights, seed=seed)
        for first, peers in sorted(schedule.items())
    }


def topology_at(topologies: Mapping[int, Topology], step: int) -> Topology:
    """The topology of a round."""
    return topologies[max(first for first in topologies if first <= step)]
