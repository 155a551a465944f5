"""Laws of gossip, over topologies and world sizes of 1 to 16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gradcomp.errors import ProtocolError, SpecError, TopologyError
from gradcomp.exchange import pieces
from gradcomp.gossip import (
    TOPOLOGIES,
    Bilateral,
    Choco,
    DeepSqueeze,
    Gossip,
    Moniqua,
    PowerGossip,
    PushSum,
    QuantizedPushSum,
    Sides,
    SimpleGossip,
    Topology,
    base,
    from_edges,
    from_matrix,
    make_topologies,
    make_topology,
    run_gossip,
    topology_at,
    watts_strogatz,
)
from gradcomp.tools.plotting import plot_topology

Array = npt.NDArray[Any]

LAWS = settings(deadline=None, derandomize=True, database=None, max_examples=40)
SHAPES = {"w": (6, 5), "b": (3,), "conv": (4, 2, 3)}
NUMEL = 30 + 3 + 24


@st.composite
def topologies(draw: Any, symmetric: bool = False, static: bool = False) -> Topology:
    name = draw(st.sampled_from([one for one in TOPOLOGIES if one != "social"]))
    n = draw(st.integers(1, 16))
    peers = draw(st.integers(1, 3)) if name in ("dde", "npdde", "dbe", "ddl", "dbl") else 1
    try:
        topology = make_topology(name, n, peers_per_step=peers, seed=draw(st.integers(0, 3)))
    except TopologyError:  # it does not take this number of ranks or peers
        topology = make_topology("ring", n)
    assume(not symmetric or topology.is_symmetric)
    assume(not static or topology.period == 1)
    return topology


@st.composite
def column_stochastic(draw: Any) -> Topology:
    """Random weights that change in each round."""
    n = draw(st.integers(1, 16))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    matrices = []
    for _ in range(draw(st.integers(1, 3))):
        matrix = rng.random((n, n)) * (rng.random((n, n)) < 0.5) + np.eye(n)
        matrices.append(matrix / matrix.sum(0))
    return from_matrix(*matrices)


def start(n: int, seed: int, spread: float = 1.0) -> list[Array]:
    rng = np.random.default_rng([n, seed])
    return [(spread * rng.normal(size=NUMEL)).astype(np.float32) for _ in range(n)]


def mix(ranks: Sequence[Gossip], values: Sequence[Array], rounds: int = 1) -> None:
    for _ in range(rounds):
        run_gossip([one.round(x) for one, x in zip(ranks, values, strict=True)])


def distance(values: Sequence[Array]) -> float:
    all_values = np.array(values, np.float64)
    return float(np.linalg.norm(all_values - all_values.mean(0)))


# Topologies -----------------------------------------------------------------------------------


@LAWS
@given(topologies())
def test_named_topologies_keep_the_average_and_reach_it(topology: Topology) -> None:
    assert topology.is_doubly_stochastic
    assert 0 < topology.spectral_gap() <= 1


@LAWS
@given(topologies(), st.integers(0, 40))
def test_both_ends_know_of_an_edge(topology: Topology, step: int) -> None:
    for rank in range(topology.world_size):
        peers = topology.peers(rank, step)
        assert rank not in peers.out
        assert rank not in peers.in_
        assert len(set(peers.out)) == len(peers.out)
        for peer in peers.out:
            assert rank in topology.peers(peer, step).in_
            assert topology.matrix(step)[peer, rank] > 0


@pytest.mark.parametrize("weights", ["uniform", "metropolis", "best_constant"])
def test_weights(weights: str) -> None:
    ring = make_topology("ring", 8, weights=weights)
    star = make_topology("star", 8, weights=weights)
    assert ring.is_doubly_stochastic
    assert star.is_column_stochastic
    assert star.is_doubly_stochastic == (weights != "uniform")
    if weights == "best_constant":
        assert ring.spectral_gap() > make_topology("ring", 8).spectral_gap()


def test_social_network_is_connected() -> None:
    social = make_topology("social", 32)
    assert social.is_doubly_stochastic
    assert social.spectral_gap() > 0
    assert sum(len(social.peers(rank).out) for rank in range(32)) == 2 * 89


def test_eigenvalues_of_a_changing_graph_are_of_a_whole_period() -> None:
    assert make_topology("npdde", 16).spectral_gap() == 1  # exact after log2(16) rounds
    assert make_topology("exponential", 16).spectral_gap() < 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_topology("rnig", 4), "no topology is called 'rnig'; known: ring,"),
        (lambda: make_topology("ring", 0), "world_size is 0; it must be at least 1"),
        (lambda: make_topology("hypercube", 6), "power of two of ranks, not 6: 4 and 8"),
        (lambda: make_topology("dbe", 5), "even number of ranks, not 5.*4 or 6"),
        (lambda: make_topology("social", 8), "takes 32 ranks, not 8"),
        (lambda: make_topology("ring", 4, peers_per_step=2), "goes with dde, npdde, dbe, ddl, dbl"),
        (lambda: make_topology("dde", 4, peers_per_step=4), "from 1 to 3 for 4 ranks"),
        (lambda: make_topology("dde", 4, weights="metropolis"), "directed edges"),
        (lambda: make_topology("ring", 4, weights="best"), "must be one of auto, uniform"),
        (lambda: from_edges(3, [(0, 3)]), r"edge \(0, 3\) must join two ranks in \[0, 3\)"),
        (lambda: from_matrix([[1, 0]]), "it must be square"),
        (lambda: from_matrix([[2, -1], [-1, 2]]), "negative or not finite"),
        (lambda: PushSum(from_matrix([[0.5, 0.5], [0, 1]]), 0), "column-stochastic"),
        (lambda: PowerGossip(make_topology("npdde", 4), 0, SHAPES), "needs a symmetric"),
        (lambda: Choco(make_topology("npdde", 4), 0, SHAPES), "does not change"),
        (lambda: SimpleGossip(make_topology("star", 4, weights="uniform"), 0), "push-sum"),
        (lambda: Sides(make_topology("ring", 5)), "bipartite graph.* circle .* take 'dbe'"),
        (
            lambda: make_topologies("npdde", 8, peers_per_step={2: 1}),
            r"\{2: 1\}; it must be a numb",
        ),
        (lambda: make_topologies("npdde", 4, peers_per_step={0: 1, 9: 4}), "from 1 to 3 for 4"),
        (lambda: SimpleGossip(make_topology("ring", 4), 4), r"rank is 4; it must be in \[0, 4\)"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()


@pytest.mark.parametrize("name", ["ring", "npdde"])
def test_graphs_are_drawn(name: str, tmp_path: Path) -> None:
    plot_topology(make_topology(name, 8), tmp_path / "graph.png")
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")


def test_small_worlds_take_an_even_number_of_neighbours() -> None:
    assert watts_strogatz(12, neighbours=4, seed=1).is_doubly_stochastic
    assert (
        watts_strogatz(12, seed=1).matrix().tolist() == watts_strogatz(12, seed=1).matrix().tolist()
    )
    with pytest.raises(TopologyError, match=r"neighbours is 3 and rewiring 0\.9"):
        watts_strogatz(12, neighbours=3)


def test_the_topology_can_change_between_rounds() -> None:
    values = [np.full(3, rank, np.float64) for rank in range(8)]
    ranks = [PushSum(make_topology("ring", 8), rank) for rank in range(8)]
    mix(ranks, values, 2)
    for one in ranks:
        one.change_topology(make_topology("full", 8))
    mix(ranks, values)
    np.testing.assert_allclose(values, 3.5, rtol=1e-12)
    with pytest.raises(TopologyError, match="for 4 ranks; it must be for 8"):
        ranks[0].change_topology(make_topology("ring", 4))
    with pytest.raises(TopologyError, match="belongs to one graph"):
        Choco(make_topology("ring", 8), 0, SHAPES).change_topology(make_topology("full", 8))


# Laws of algorithms ---------------------------------------------------------------------------


@LAWS
@given(st.one_of(topologies(), column_stochastic()), st.integers(0, 99))
def test_push_sum_conserves_mass(topology: Topology, seed: int) -> None:
    n = topology.world_size
    values = [x.astype(np.float64) for x in start(n, seed)]
    ranks = [PushSum(topology, rank) for rank in range(n)]
    total = np.sum(values, axis=0)
    for _ in range(12):
        mix(ranks, values)
        np.testing.assert_allclose(np.sum(values, axis=0), total, rtol=1e-10, atol=1e-11)
        assert sum(one.weight for one in ranks) == pytest.approx(n, rel=1e-12)
        assert all(one.weight > 0 for one in ranks)


@settings(LAWS, max_examples=6)
@given(st.integers(2, 16), st.integers(0, 99))
def test_push_sum_finds_the_average_of_a_directed_graph(n: int, seed: int) -> None:
    topology = directed(n, seed)
    values = [x.astype(np.float64) for x in start(n, seed)]
    mean = np.mean(values, axis=0)
    ranks = [PushSum(topology, rank) for rank in range(n)]
    mix(ranks, values, 400)
    for one, x in zip(ranks, values, strict=True):
        np.testing.assert_allclose(one.debias(x), mean, atol=1e-3)


def directed(n: int, seed: int) -> Topology:
    """A ring in one direction, and some more edges."""
    rng = np.random.default_rng([seed, n])
    edges = {(rank, (rank + 1) % n) for rank in range(n)}
    edges |= {(int(a), int(b)) for a, b in rng.integers(0, n, (n, 2)) if a != b}
    return from_edges(n, edges, directed=True, weights="uniform")


@pytest.mark.parametrize(
    ("codec", "gamma"), [("qsgd(levels=7)", 0.5), ("topk(ratio=0.3)", 0.15), ("identity", 1.0)]
)
@settings(LAWS, max_examples=4)
@given(st.integers(2, 12), st.integers(0, 99))
def test_quantized_push_sum_finds_the_average_of_a_directed_graph(
    codec: str, gamma: float, n: int, seed: int
) -> None:
    topology = directed(n, seed)
    values = start(n, seed)
    total = np.sum(values, axis=0, dtype=np.float64)
    ranks = [
        QuantizedPushSum(topology, rank, SHAPES, codec=codec, gamma=gamma) for rank in range(n)
    ]
    for _ in range(8):
        mix(ranks, values)
        np.testing.assert_allclose(np.sum(values, axis=0, dtype=np.float64), total, atol=1e-4)
        assert sum(one.weight for one in ranks) == pytest.approx(n, rel=1e-12)
        assert all(one.weight > 0 for one in ranks)
    mix(ranks, values, 1500)
    estimates = [x / one.weight for one, x in zip(ranks, values, strict=True)]
    np.testing.assert_allclose(estimates, np.tile(total / n, (n, 1)), atol=5e-3)


def test_quantized_push_sum_without_loss_is_push_sum() -> None:
    topology = directed(7, 3)
    mine, theirs = start(7, 1), [x.astype(np.float64) for x in start(7, 1)]
    coded = [
        QuantizedPushSum(topology, rank, SHAPES, codec="identity", gamma=1.0) for rank in range(7)
    ]
    plain = [PushSum(topology, rank) for rank in range(7)]
    for _ in range(10):
        mix(coded, mine)
        mix(plain, theirs)
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
        assert [one.weight for one in coded] == pytest.approx([one.weight for one in plain])


def test_quantized_push_sum_refuses_graphs_and_weights() -> None:
    with pytest.raises(TopologyError, match="does not change"):
        QuantizedPushSum(make_topology("npdde", 8), 0, SHAPES)
    with pytest.raises(ValueError, match=r"gamma is 1.5; it must be in \(0, 1\]"):
        QuantizedPushSum(directed(4, 0), 0, SHAPES, gamma=1.5)
    for bad in (b"", np.float64(0).tobytes(), np.float64(np.nan).tobytes()):
        one = QuantizedPushSum(directed(2, 0), 0, SHAPES, codec="identity")
        x = start(2, 0)[0]
        round_ = one.round(x)
        sent = next(round_)
        reply = np.frombuffer(x[30:33].tobytes() + bad, np.uint8)
        with pytest.raises(ProtocolError, match="rank 1 sent the push-sum weight"):
            round_.send(dict.fromkeys(sent.sources, reply))


ALGORITHMS: dict[str, Callable[[Topology, int], Gossip]] = {
    "simple": lambda topology, rank: SimpleGossip(topology, rank, 0.9),
    "choco": lambda topology, rank: Choco(
        topology, rank, SHAPES, codec="topk(ratio=0.3)", gamma=0.2
    ),
    "choco, random codec": lambda topology, rank: Choco(
        topology, rank, SHAPES, codec="qsgd(levels=7)", gamma=0.2
    ),
    "choco, push-sum": lambda topology, rank: QuantizedPushSum(
        topology, rank, SHAPES, codec="topk(ratio=0.3)", gamma=0.2
    ),
    "deepsqueeze": lambda topology, rank: DeepSqueeze(
        topology, rank, SHAPES, codec="sign", gamma=0.05
    ),
    "moniqua": lambda topology, rank: Moniqua(topology, rank, SHAPES, theta=8.0),
    "powergossip": lambda topology, rank: PowerGossip(topology, rank, SHAPES, num_iterations=2),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(LAWS, max_examples=12)
@given(st.data(), st.integers(0, 99))
def test_doubly_stochastic_mixing_keeps_the_average(
    algorithm: str, data: st.DataObject, seed: int
) -> None:
    choose = topologies(symmetric=algorithm == "powergossip", static=algorithm.startswith("choco"))
    topology = data.draw(choose)
    n = topology.world_size
    values = start(n, seed)
    ranks = [ALGORITHMS[algorithm](topology, rank) for rank in range(n)]
    mean = np.mean(values, axis=0, dtype=np.float64)
    for _ in range(8):
        mix(ranks, values)
        np.testing.assert_allclose(np.mean(values, axis=0, dtype=np.float64), mean, atol=2e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tensors_beyond_the_limit_of_codecs(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are mixed like tensors that are their pieces."""
    topology = make_topology("ring", 4)
    values = start(4, 0)
    copies = [x.copy() for x in values]
    with monkeypatch.context() as patched:
        patched.setattr(base, "is_cut", lambda numel: numel > 25)
        patched.setattr(pieces, "_PIECE_NUMEL", 16)
        patched.setattr(pieces, "is_cut", base.is_cut)
        whole = [ALGORITHMS[algorithm](topology, rank) for rank in range(4)]
        parts = {one.key.name: one.key.shape for one in pieces.pieces_of("w", SHAPES["w"])}
    assert len(parts) == 2
    monkeypatch.setitem(globals(), "SHAPES", parts | {"b": (3,), "conv": (4, 2, 3)})
    apart = [ALGORITHMS[algorithm](topology, rank) for rank in range(4)]
    mix(whole, values, 4)
    mix(apart, copies, 4)
    for x, copy in zip(values, copies, strict=True):
        assert x.tobytes() == copy.tobytes()


def test_each_tensor_has_a_codec_and_its_pieces_have_that(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = make_topology("ring", 4)
    codecs = {"w": "sign", "conv": "topk(k=2)"}
    monkeypatch.setattr(base, "is_cut", lambda numel: numel > 25)
    monkeypatch.setattr(pieces, "_PIECE_NUMEL", 16)
    state = Choco(topology, 0, SHAPES, codec=codecs).state_dict()
    assert list(state["x_hat"]) == ["w[0]", "w[1]", "conv"]
    with pytest.raises(SpecError, match="no codec is given for 'w';"):
        Choco(topology, 0, SHAPES, codec={"conv": "sign"})


@LAWS
@given(topologies(symmetric=True), st.integers(0, 99), st.booleans(), st.integers(1, 3))
def test_both_ends_of_an_edge_hold_the_same_factors(
    topology: Topology, seed: int, warm_start: bool, rank_of_factors: int
) -> None:
    n = topology.world_size
    values = start(n, seed)
    ranks = [
        PowerGossip(topology, rank, SHAPES, compression_rank=rank_of_factors, warm_start=warm_start)
        for rank in range(n)
    ]
    for _ in range(5):
        mix(ranks, values)
        states = [one.state_dict() for one in ranks]
        for rank, state in enumerate(states):
            for kind in ("p", "q"):
                for key, factor in state[kind].items():
                    peer, _, name = key.partition("/")
                    theirs = states[int(peer)][kind][f"{rank}/{name}"]
                    assert factor.tobytes() == theirs.tobytes()


def test_powergossip_finds_a_low_rank_difference_at_once() -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(size=30)
    matrices = [np.outer(rng.normal(size=6), rng.normal(size=5)).reshape(-1) for _ in range(2)]
    values = [np.float32(common + one) for one in matrices]
    topology = make_topology("full", 2)
    ranks = [PowerGossip(topology, rank, {"w": (6, 5)}, compression_rank=2) for rank in range(2)]
    before = distance(values)
    mix(ranks, values, 3)
    assert distance(values) < 1e-5 * before


@pytest.mark.parametrize(
    ("codec", "gamma"), [("topk(ratio=0.2)", 0.15), ("sign", 0.15), ("randomk(ratio=0.3)", 0.2)]
)
@settings(LAWS, max_examples=4)
@given(topologies(static=True, symmetric=True), st.integers(0, 99))
def test_choco_converges_linearly(codec: str, gamma: float, topology: Topology, seed: int) -> None:
    n = topology.world_size
    assume(n > 1)
    values = start(n, seed)
    ranks = [Choco(topology, rank, SHAPES, codec=codec, gamma=gamma) for rank in range(n)]
    first = distance(values)
    # Without a codec the factor is 1 - gamma gap; the codec makes it larger. The distance to the
    # peers' estimates shrinks, too, and the two alternate.
    rate = 1 - gamma * topology.spectral_gap() / 8
    for rounds in range(40, 200, 40):
        mix(ranks, values, 40)
        assert distance(values) < max(2 * rate**rounds, 2e-5) * first


@LAWS
@given(st.data(), st.integers(0, 99))
def test_asynchronous_averaging_keeps_the_sum(data: st.DataObject, seed: int) -> None:
    """Changes of values between a question and the use of its answer."""
    n = 2 * data.draw(st.integers(1, 8))
    sides = Sides(make_topology(data.draw(st.sampled_from(["dbe", "dbl", "ring", "star"])), n))
    values = [x.astype(np.float64) for x in start(n, seed)]
    ranks = [Bilateral(x) for x in values]
    total = np.sum(values, axis=0)
    asked: dict[int, tuple[int, Any]] = {}
    answered: dict[int, tuple[Any, Any]] = {}
    active = [rank for rank in range(n) if sides.active[rank]]
    for at in range(60):
        rank = data.draw(st.sampled_from(range(n)))
        step = np.full(NUMEL, 0.1 * at)
        ranks[rank].add(step)
        total += step
        if rank in answered:
            ranks[rank].take(*answered.pop(rank))
        elif rank in asked:
            peer, question = asked.pop(rank)
            assert not sides.active[peer]
            answered[rank] = question, ranks[peer].answer(question)
        elif rank in active:
            asked[rank] = sides.choose(rank, at, seed), ranks[rank].ask()
    for rank, (question, answer) in answered.items():
        ranks[rank].take(question, answer)
    np.testing.assert_allclose(sum(one.read() for one in ranks), total, rtol=1e-10, atol=1e-9)


def test_asynchronous_averaging_reaches_the_average() -> None:
    sides = Sides(make_topology("dbe", 8))
    values = start(8, 3)
    ranks = [Bilateral(x) for x in values]
    for at in range(60):
        for rank in (1, 3, 5, 7):
            question = ranks[rank].ask()
            answer = ranks[sides.choose(rank, at, 0)].answer(question)
            ranks[rank].take(question, answer)
    for one in ranks:
        np.testing.assert_allclose(one.read(), np.mean(values, axis=0), atol=1e-5)
    assert sum(one.traffic.messages for one in ranks) == 2 * 60 * 4
    assert sum(one.traffic.bits for one in ranks) == 2 * 60 * 4 * 32 * NUMEL
    with pytest.raises(ProtocolError, match="sent 4 bytes instead of 228"):
        ranks[0].answer(ranks[1].ask()[:4])


def test_both_ends_of_an_exchange_meet() -> None:
    one, other = (Bilateral(np.float32([value])) for value in (1.0, 4.0))
    question = one.ask()
    one.add(np.float32([10.0]))
    one.take(question, other.answer(question))
    assert (one.read(), other.read()) == (12.5, 2.5)


def test_the_sides_of_a_graph() -> None:
    sides = Sides(make_topology("dbe", 8))
    assert sides.active == [False, True] * 4
    assert sides.peers[1] == [0, 2, 4, 6]
    assert {sides.choose(1, at, 0) for at in range(40)} == {0, 2, 4, 6}


def test_the_number_of_peers_follows_a_schedule() -> None:
    topologies = make_topologies("npdde", 8, peers_per_step={0: 2, 10: 1})
    sent = [len(topology_at(topologies, step).peers(0, step).out) for step in (0, 9, 10, 99)]
    assert sent == [2, 2, 1, 1]


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("bits", [1, 2, 3, 8])
@settings(LAWS, max_examples=10)
@given(st.integers(0, 99), st.floats(0.01, 100), st.floats(-1000, 1000))
def test_moniqua_error_bound(
    rounding: str, bits: int, seed: int, theta: float, offset: float
) -> None:
    topology = make_topology("full", 2)

    def make(rank: int) -> Moniqua:
        shapes = {"w": (40, 5)}
        return Moniqua(topology, rank, shapes, theta=theta, bits=bits, rounding=rounding, seed=seed)

    if (rounding, bits) == ("stochastic", 1):
        with pytest.raises(ValueError, match="with stochastic rounding it must be 2 to 8"):
            make(0)
        return
    rng = np.random.default_rng(seed)
    ours = (offset * theta + rng.normal(size=200)).astype(np.float32)
    theirs = (ours + theta * rng.uniform(-0.99, 0.99, 200)).astype(np.float32)
    one, other = make(0), make(1)
    tensor = one.layout.large[0]
    sent = other._encode(theirs)
    assert sent.nbytes == 200 * bits // 8
    guessed = ours + one._offsets(sent, tensor, ours)
    # Float32 has 24 bits for what may be large next to theta.
    room = 1e-6 * np.abs(theirs).max()
    assert np.abs(guessed - theirs).max() <= one.error_bound + room
    own = theirs + other._offsets(sent, tensor, theirs)
    np.testing.assert_allclose(guessed, own, rtol=1e-6, atol=1e-6 * theta)


def test_moniqua_sends_so_many_bits() -> None:
    topology = make_topology("ring", 4)
    ranks = [Moniqua(topology, rank, {"w": (100, 8)}, theta=4.0) for rank in range(4)]
    values = [np.full(800, rank, np.float32) for rank in range(4)]
    mix(ranks, values, 10)
    assert all(one.traffic.bits == 10 * 2 * 2 * 800 for one in ranks)
    assert all(one.traffic.messages == 20 for one in ranks)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "push-sum"])
def test_a_state_resumes_bit_for_bit(algorithm: str) -> None:
    make = ALGORITHMS.get(algorithm, PushSum)
    topology = make_topology("star", 5)
    if algorithm == "push-sum":
        topology = make_topology("star", 5, weights="uniform")
    values = start(5, 1)
    ranks = [make(topology, rank) for rank in range(5)]
    mix(ranks, values, 3)
    states, copies = [one.state_dict() for one in ranks], [x.copy() for x in values]
    mix(ranks, values, 4)
    again = [make(topology, rank) for rank in range(5)]
    for one, state in zip(again, states, strict=True):
        one.load_state_dict(state)
    mix(again, copies, 4)
    for x, copy in zip(values, copies, strict=True):
        assert x.tobytes() == copy.tobytes()
