"""Gossip algorithms and topologies reproduce the reference implementations' cases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from gossip_reference import GRAPHS, Case, factors, powergossip_ranks

from gradcomp.gossip import (
    Choco,
    DeepSqueeze,
    Gossip,
    PushSum,
    SimpleGossip,
    Topology,
    from_matrix,
    make_topology,
    mixing_matrix,
    run_gossip,
)
from support.reference import Array, reference


def of_ranks(case: Case, make: Any) -> list[Any]:
    return [make(rank) for rank in range(case.about["world_size"])]


@pytest.mark.parametrize("name", ["simplegossip-01", "simplegossip-02"])
def test_gossip_averaging(name: str) -> None:
    case = Case(name)
    topology, gamma = case.topology(), case.config["diffusion_rate"]
    ranks = of_ranks(case, lambda rank: SimpleGossip(topology, rank, gamma))
    case.run(ranks)
    for rank, one in enumerate(ranks):
        assert one.traffic.bits == case.arrays["bits_sent"][-1, rank]
        assert one.traffic.messages == case.arrays["messages_sent"][-1, rank]


@pytest.mark.parametrize(
    "name", ["choco-topk-01", "choco-topk-02", "choco-sign-01", "choco-sign-02"]
)
def test_choco(name: str) -> None:
    case = Case(name)
    topology = case.topology()
    ranks = of_ranks(
        case,
        lambda rank: Choco(
            topology,
            rank,
            case.shapes,
            codec=case.codecs(),
            gamma=case.config["diffusion_rate"],
        ),
    )
    case.run(ranks, {"x_hat": "xhat_local", "s": "xhat_weighted"})
    # The reference sends one message for each kind of data, and none for all of them.
    peers = len(topology.peers(0).out)
    assert all(one.traffic.messages == peers * case.steps for one in ranks)


@pytest.mark.parametrize("name", ["deepsqueeze-01", "deepsqueeze-02"])
def test_deepsqueeze(name: str) -> None:
    case = Case(name)
    topology = case.topology()
    ranks = of_ranks(
        case,
        lambda rank: DeepSqueeze(
            topology,
            rank,
            case.shapes,
            codec=case.codecs(),
            gamma=case.config["diffusion_rate"],
        ),
    )
    case.run(ranks, {"delta": "delta"})


@pytest.mark.parametrize("name", [f"powergossip-0{number}" for number in range(1, 5)])
def test_powergossip(name: str) -> None:
    case = Case(name)
    np.testing.assert_array_equal(case.flat("x", 0, 0), case.flat("x_init", 0))
    ranks = powergossip_ranks(case)
    case.run(ranks, first=1)
    for rank, one in enumerate(ranks):
        assert one.traffic.bits == case.arrays["bits_sent"][-1, rank]
        assert one.traffic.messages == case.arrays["messages_sent"][-1, rank]


@pytest.mark.parametrize("name", [f"powergossip-0{number}" for number in range(1, 5)])
def test_factors_of_powergossip(name: str) -> None:
    case = Case(name)
    ranks = powergossip_ranks(case)
    limits = {key: case.about["tolerance"]["factors"][key] for key in ("rtol", "atol")}
    values = [case.flat("x_init", rank) for rank in range(len(ranks))]
    for step in range(1, 3):
        run_gossip([one.round(x) for one, x in zip(ranks, values, strict=True)])
        for edge, (low, high) in enumerate(case.arrays["edges"].tolist()):
            for side, kind in enumerate("pq"):
                expected = factors(case, case.arrays[f"{kind}_state"][step, edge], side)
                for tensor in case.shapes:
                    actual = ranks[low].state_dict()[kind][f"{high}/{tensor}"]
                    case.close(actual, expected[tensor], f"{kind} of {low}-{high}", **limits)


def topology_of_push_sum(case: Case) -> Topology:
    graph, n = case.config["graph"], case.about["world_size"]
    if "made static" in graph:
        # All of the reference's list in each round: two entries are one peer, and count twice.
        out = case.arrays["out_peers"][0].tolist()
        return from_matrix(mixing_matrix(out, "uniform"))
    if graph == "RingGraph":
        return from_matrix(*case.arrays["mixing"])  # with one peer a step
    topology = make_topology(GRAPHS[graph], n, peers_per_step=case.config["peers_per_itr"])
    for step in range(case.steps):
        for rank in range(n):
            assert (
                list(topology.peers(rank, step).out)
                == case.arrays["out_peers"][step, rank].tolist()
            )
    if case.config["mixing"] != "sender-weighted":
        return topology
    return from_matrix(*sender_weighted(case, topology))


def sender_weighted(case: Case, topology: Topology) -> Iterable[Array]:
    """Each rank keeps its fraction, and hands the rest to its one peer."""
    keep = case.arrays["keep_fraction"]
    for step in range(case.steps):
        matrix = np.diag(keep)
        for rank, kept in enumerate(keep):
            matrix[topology.peers(rank, step).out[0], rank] = 1 - kept
        yield matrix


@pytest.mark.parametrize(
    "name",
    [f"sgp-pushsum-0{number}" for number in range(1, 6)] + ["sgp-pushpull-01", "sgp-pushpull-02"],
)
def test_push_sum(name: str) -> None:
    case = Case(name)
    topology = topology_of_push_sum(case)
    for step in range(case.steps):
        case.close(topology.matrix(step), case.arrays["mixing"][step], f"weights, step {step}")
    n = case.about["world_size"]
    ranks: list[Gossip]
    if case.config["push_sum"]:
        ranks = [PushSum(topology, rank) for rank in range(n)]
    else:
        ranks = [SimpleGossip(topology, rank) for rank in range(n)]
    values = [case.flat("x_init", rank) for rank in range(n)]
    for step in range(case.steps):
        for rank, x in enumerate(values):
            if case.config["lr"]:
                x -= x.dtype.type(case.config["lr"]) * case.flat("grad", step, rank)
        run_gossip([one.round(x) for one, x in zip(ranks, values, strict=True)])
        for rank, (one, x) in enumerate(zip(ranks, values, strict=True)):
            where = f"step {step}, rank {rank}"
            case.close(x, case.flat("x", step, rank), where)
            if isinstance(one, PushSum):
                case.close(np.array(one.weight), case.arrays["w"][step, rank], where)
                case.close(one.debias(x), case.flat("z", step, rank), where)


def test_a_sender_keeps_what_its_weights_say() -> None:
    """The reference hands out non-uniform weights in the wrong order (a stated defect)."""
    case = Case("sgp-pushsum-06")
    assert case.about["defect"]
    topology = from_matrix(*sender_weighted(case, make_topology("dde", 8)))
    ranks = [PushSum(topology, rank) for rank in range(8)]
    values = [case.flat("x_init", rank) for rank in range(8)]
    mean = np.mean(values, axis=0)
    run_gossip([one.round(x) for one, x in zip(ranks, values, strict=True)])
    keep = case.arrays["keep_fraction"]
    for rank, x in enumerate(values):
        before = rank - 1
        expected = keep[rank] * case.flat("x_init", rank)
        expected += (1 - keep[before]) * case.flat("x_init", before % 8)
        np.testing.assert_allclose(x, expected, rtol=1e-12, atol=1e-12)
    for _ in range(60):
        run_gossip([one.round(x) for one, x in zip(ranks, values, strict=True)])
    for one, x in zip(ranks, values, strict=True):
        np.testing.assert_allclose(one.debias(x), mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["gossip-topologies-01", "gossip-topologies-02"])
def test_topologies(name: str) -> None:
    about, case_arrays = reference(name)
    for n in about["config"]["sizes"]:
        for theirs, ours in (
            *(("ring", "ring"), ("torus", "torus"), ("full", "full")),
            ("unidirectional-ring", "unidirectional_ring"),
        ):
            topology = make_topology(ours, n)
            expected = case_arrays[f"W.{theirs}.{n}"]
            np.testing.assert_allclose(topology.matrix(), expected, rtol=1e-12, atol=1e-12)
            known = about["properties"].get(f"{theirs}.{n}")
            if known:
                gap = topology.spectral_gap(signed=True)
                assert gap == pytest.approx(known["spectral_gap"], abs=1e-9)
                assert topology.is_doubly_stochastic == known["doubly_stochastic"]
                assert topology.is_symmetric == known["symmetric"]
        adjacency = case_arrays[f"adjacency.watts-strogatz.{n}"]
        out = [np.flatnonzero(row).tolist() for row in adjacency]
        np.testing.assert_allclose(
            mixing_matrix(out, "metropolis"),
            case_arrays[f"W.watts-strogatz.{n}"],
            rtol=1e-12,
            atol=1e-12,
        )


@pytest.mark.parametrize("name", ["sgp-peers-01", "sgp-peers-02"])
def test_peers(name: str) -> None:
    """Where the reference names a peer twice in a round, ours has it once."""
    _, arrays = reference(name)
    seen = 0
    for key, expected in arrays.items():
        kind, _, rest = key.partition(".")
        graph, _, numbers = rest.partition(".")
        if kind not in ("out_peers", "in_peers") or graph not in GRAPHS:
            continue
        n, peers = map(int, numbers.split("."))
        topology = make_topology(GRAPHS[graph], n, peers_per_step=peers)
        for step, of_ranks_now in enumerate(expected.tolist()):
            for rank, theirs in enumerate(of_ranks_now):
                ours = topology.peers(rank, step)
                if kind == "out_peers":
                    assert list(ours.out) == list(dict.fromkeys(theirs)), (key, step, rank)
                else:
                    assert ours.in_ == tuple(sorted(set(theirs) - {-1})), (key, step, rank)
                seen += 1
    assert seen > 500
