"""Decentralized averaging: ranks exchange with a few peers, and agree in the course of rounds.

Topologies define the peers; algorithms are rounds over `gradcomp.exchange.rounds.Exchange`, run by
`run_gossip` in one process, and by adapters between processes.
"""

from __future__ import annotations

from gradcomp.gossip.algorithms import ALGORITHMS, make_gossip
from gradcomp.gossip.base import CompressedGossip, Gossip, Layout, Traffic
from gradcomp.gossip.bilateral import Bilateral, Sides
from gradcomp.gossip.coded import Choco, DeepSqueeze, QuantizedPushSum
from gradcomp.gossip.dense import PushSum, SimpleGossip
from gradcomp.gossip.graphs import (
    TOPOLOGIES,
    circulant,
    from_edges,
    from_matrix,
    make_topology,
    watts_strogatz,
)
from gradcomp.gossip.loopback import run_gossip
from gradcomp.gossip.moniqua import Moniqua
from gradcomp.gossip.powergossip import PowerGossip
from gradcomp.gossip.schedule import PeersSchedule, make_topologies, topology_at
from gradcomp.gossip.topology import WEIGHTS, Peers, Topology, mixing_matrix

__all__ = [
    "ALGORITHMS",
    "TOPOLOGIES",
    "WEIGHTS",
    "Bilateral",
    "Choco",
    "CompressedGossip",
    "DeepSqueeze",
    "Gossip",
    "Layout",
    "Moniqua",
    "Peers",
    "PeersSchedule",
    "PowerGossip",
    "PushSum",
    "QuantizedPushSum",
    "Sides",
    "SimpleGossip",
    "Topology",
    "Traffic",
    "circulant",
    "from_edges",
    "from_matrix",
    "make_gossip",
    "make_topologies",
    "make_topology",
    "mixing_matrix",
    "run_gossip",
    "topology_at",
    "watts_strogatz",
]
