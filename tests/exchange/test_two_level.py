"""Averages inside nodes, then any pattern between nodes, in the loopback."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gradcomp import Config, Loopback, Pipeline
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.spec import parse
from gradcomp.errors import ConfigError, ProtocolError, StateError, WireError
from gradcomp.exchange.explain import explain
from gradcomp.exchange.rounds import AllReduce, AllToAll, Broadcast, Request
from gradcomp.exchange.select import exchange_pattern
from gradcomp.runtime.loopback import run_rounds
from gradcomp.tools.model_run import model_run
from support import exchange_cases
from support.exchange_cases import SHAPES, check_nothing_is_lost, gradients

SPECS = [*exchange_cases.CODECS, "globaltopk(ratio=0.01)"]
ALGORITHMS = [
    "residual|atomo(rank=2,unbiased=false)",
    "residual|chunk_allreduce(ratio=0.1)",
    "signsgd_mv",
]
ALGORITHMS += ["powersgd(start_step=0)"]
LAYOUTS = [(4, 2), (6, 3), (6, 2), (2, 2), (3, 1)]
"""Ranks, and ranks per node."""


def config_of(
    spec: str, exchange: str = "two_level", nodes: int | None = 2, **others: Any
) -> Config:
    return exchange_cases.config_of(spec, exchange, ranks_per_node=nodes, **others)


def of_nodes(grads: dict[str, list[FloatArray]], size: int) -> dict[str, list[FloatArray]]:
    """Each node's average, as the loopback's all-reduce has it."""
    result = {}
    for name, of_ranks in grads.items():
        result[name] = []
        for first in range(0, len(of_ranks), size):
            total = of_ranks[first].copy()
            for grad in of_ranks[first + 1 : first + size]:
                total += grad
            result[name].append(total * np.float32(1 / size))
    return result


def patterns(spec: str) -> list[str]:
    """The exchanges that a spec may have between nodes."""
    asked = ["two_level", "two_level(gather)", "two_level(sra)", "two_level(reduce)"]
    if spec.startswith("topk"):
        asked.insert(2, "two_level(sparse_allreduce)")
    if spec in ALGORITHMS:
        return asked[:1]
    if spec.startswith("globaltopk"):
        return asked[:2]
    return asked if exchange_pattern(parse(spec)) == "reduce" else asked[:-1]


@pytest.mark.parametrize(("ranks", "size"), [(4, 2), (6, 3)])
@pytest.mark.parametrize("spec", SPECS + ALGORITHMS)
def test_nodes_exchange_as_ranks_do(spec: str, ranks: int, size: int) -> None:
    """Averages and memories equal those of a job with one rank per node."""
    for exchange in patterns(spec):
        full = spec if spec in ALGORITHMS else f"residual(beta=0.9)|{spec}"
        between = exchange.removeprefix("two_level").strip("()") or "auto"
        loop = Loopback(config_of(full, exchange, size), ranks)
        nodes = Loopback(config_of(full, between, None), ranks // size)
        for step in range(2):
            grads = gradients(ranks, step)
            expected = nodes.step(of_nodes(grads, size))
            for name, averages in loop.step(grads).items():
                for average in averages:
                    assert average.tobytes() == expected[name][0].tobytes(), exchange
        for rank, pipeline in enumerate(loop.ranks):
            own, node = pipeline.state_dict(), nodes.ranks[rank // size].state_dict()
            for kind in ("residual", "momentum", "powersgd_p", "powersgd_q"):
                assert own[kind].keys() == node[kind].keys()
                for name, array in own[kind].items():
                    assert array.tobytes() == node[kind][name].tobytes()


def test_dgc_has_momenta_of_nodes() -> None:
    spec = "dgc(ratio=0.05,warmup_epochs=0,clip=scaled_norm)"
    loop, nodes = Loopback(config_of(spec), 4), Loopback(config_of(spec, "auto", None), 2)
    for step in range(3):
        grads = gradients(4, step)
        grads["bias"] = [np.full(9, float(rank)) for rank in range(4)]
        averages = loop.step(grads)
        expected = nodes.step(of_nodes(grads, 2))
        for name, of_ranks in averages.items():
            for average in of_ranks:
                np.testing.assert_allclose(average, expected[name][0], rtol=0, atol=1e-6)
    state = loop.ranks[1].state_dict()
    assert set(state["momentum"]) == {*SHAPES, "bias"}
    np.testing.assert_array_equal(
        state["residual"]["odd"], loop.ranks[0].state_dict()["residual"]["odd"]
    )


@pytest.mark.parametrize("exchange", ["two_level", "two_level(sra)"])
@pytest.mark.parametrize(("ranks", "size"), LAYOUTS)
def test_what_averages_lack_is_in_the_residuals(ranks: int, size: int, exchange: str) -> None:
    """A node's residuals count on each of its ranks."""
    config = config_of("residual|topk(ratio=0.02)", exchange, size)
    check_nothing_is_lost(Loopback(config, ranks))


def test_bytes_between_nodes_grow_with_nodes() -> None:
    sent = {}
    for ranks, size in [(4, 1), (8, 2), (16, 4)]:
        loop = Loopback(config_of("topk(ratio=0.01)", nodes=size), ranks)
        loop.step(gradients(ranks))
        leaders, others = loop.stats[::size], [s for r, s in enumerate(loop.stats) if r % size]
        assert all(one.total_bytes == 0 for one in others)
        assert all((one.node_bytes > 0) == (size > 1) for one in loop.stats)
        sent[ranks] = sum(one.total_bytes for one in leaders)
    # The frames' sizes differ by their indices.
    assert max(sent.values()) < 1.02 * min(sent.values())


def test_a_node_of_all_ranks_asks_nobody_else() -> None:
    loop = Loopback(config_of("residual|topk(ratio=0.02)"), 2)
    loop.step(gradients(2))
    assert set(loop.stats[0].sent_bytes) == {"node allreduce"}


def test_uncompressed_tensors_take_one_level() -> None:
    loop = Loopback(config_of("topk(k=5)", rules=[{"match": {}, "use": "identity"}]), 4)
    loop.step(gradients(4))
    assert set(loop.stats[0].sent_bytes) == {"allreduce"}


def test_rules_may_have_it_alone() -> None:
    rules = [{"match": {"name": "odd"}, "use": "int8", "exchange": "two_level(sra)"}]
    loop = Loopback(config_of("int8", "gather", rules=rules), 4)
    loop.step(gradients(4))
    assert {"allgather", "alltoall", "node allreduce"} <= set(loop.stats[0].sent_bytes)
    assert "alltoall" not in loop.stats[1].sent_bytes


@pytest.mark.parametrize("exchange", ["two_level", "gather"])
@pytest.mark.parametrize("to", [(4, 4), (4, 1), (2, 2), (6, 2), (3, 1)])
def test_other_nodes_take_the_mean_of_the_states(to: tuple[int, int], exchange: str) -> None:
    """The exchange may change from one level to two as well."""
    loop = Loopback(config_of("residual|topk(ratio=0.02)", exchange), 4)
    loop.step(gradients(4))
    states = [rank.state_dict() for rank in loop.ranks]
    mean = np.mean([state["residual"]["odd"] for state in states], axis=0)
    new = Loopback(config_of("residual|topk(ratio=0.02)", nodes=to[1]), to[0])
    for rank in new.ranks:
        rank.load_state_dict(states)
    of_new = [rank.state_dict()["residual"]["odd"] for rank in new.ranks]
    np.testing.assert_allclose(np.mean(of_new, axis=0), mean, rtol=0, atol=1e-6)
    for rank, array in enumerate(of_new):
        np.testing.assert_array_equal(array, of_new[rank - rank % to[1]])


@pytest.mark.parametrize("listed", [False, True])
def test_a_job_of_the_same_nodes_resumes_to_the_last_bit(listed: bool) -> None:
    config = config_of("residual|topk(ratio=0.02)", "two_level(sra)")
    straight, resumed = Loopback(config, 4), Loopback(config, 4)
    straight.step(gradients(4))
    states = [rank.state_dict() for rank in straight.ranks]
    for state, rank in zip(states, resumed.ranks, strict=True):
        rank.load_state_dict(states if listed else state)
    again = resumed.step(gradients(4, 1))
    for name, averages in straight.step(gradients(4, 1)).items():
        assert again[name][0].tobytes() == averages[0].tobytes()


def test_states_of_other_nodes_are_refused() -> None:
    loop = Loopback(config_of("residual|topk(ratio=0.02)"), 4)
    loop.step(gradients(4))
    states = [rank.state_dict() for rank in loop.ranks]
    assert [state["ranks_per_node"] for state in states] == [2] * 4
    other = Pipeline(config_of("residual|topk(ratio=0.02)", nodes=4), 0, 4)
    with pytest.raises(StateError, match="saved with 2 ranks in a node, and this run has 4"):
        other.load_state_dict(states[0])
    states[1]["ranks_per_node"] = 1
    with pytest.raises(StateError, match="different ranks per node: 1, 2"):
        other.load_state_dict(states)


def test_ranks_per_node_of_the_engine_and_of_the_configuration() -> None:
    assert Pipeline(config_of("int8", nodes=None), 2, 4, ranks_per_node=2).node.index == 1
    assert Pipeline(config_of("int8", nodes=1), 2, 4, ranks_per_node=2).node.index == 2
    assert Pipeline(config_of("int8", "gather", 3), 2, 4, ranks_per_node=2).ranks_per_node == 1
    with pytest.raises(ConfigError, match="4 ranks cannot form nodes of 3 ranks each"):
        Pipeline(config_of("int8", nodes=3), 2, 4)


@pytest.mark.parametrize("nodes", [0, -1, "2", True])
def test_ranks_per_node_is_a_positive_integer(nodes: Any) -> None:
    with pytest.raises(ConfigError, match="expected an integer >= 1: consecutive ranks"):
        config_of("int8", nodes=nodes)


def test_the_digest_sees_nodes() -> None:
    texts = {config_of("int8", nodes=nodes).digest_text() for nodes in (None, 1, 2)}
    assert len(texts) == 3


def start(exchange: str = "two_level", spec: str = "topk(k=5)") -> list[Any]:
    """Rounds of four ranks that wait for the replies of their nodes."""
    config = config_of(spec, exchange)
    grads = gradients(4)["odd"]
    rounds = [Pipeline(config, rank, 4).round("odd", grads[rank]) for rank in range(4)]
    first = [next(one) for one in rounds]
    assert all(isinstance(one, AllReduce) and one.group == "node" for one in first)
    return rounds


@pytest.mark.parametrize("bad", [b"", b"\0" * 7, b"\0" * 17, b"\xff" * 16])
def test_a_damaged_broadcast_is_named(bad: bytes) -> None:
    (one, *_) = start()
    gather = one.send(gradients(4)["odd"][0].reshape(-1))
    back = one.send([gather.frame, gather.frame])
    assert isinstance(back, Broadcast)
    assert (gather.group, back.group) == ("leaders", "node")
    with pytest.raises(
        WireError, match=r"between nodes.*from the first rank of the node is damaged"
    ):
        one.send(np.frombuffer(bad, np.uint8))


def test_a_broadcast_of_another_size_is_named() -> None:
    (one, *_) = start(spec="fp16")
    reduce = one.send(gradients(4)["odd"][0].reshape(-1))
    one.send(reduce.array)
    with pytest.raises(WireError, match="sent 3 bytes for 'odd', not 12322"):
        one.send(np.zeros(3, np.uint8))


def test_a_damaged_frame_of_a_node_is_named() -> None:
    (_, one, *_) = start()
    gather = one.send(gradients(4)["odd"][0].reshape(-1))
    back = one.send(None)
    assert back.data.size == 0
    sizes = np.array([gather.frame.size, gather.frame.size - 1], "<u8").view(np.uint8)
    with pytest.raises(WireError, match=r"between nodes, each of them a rank: .* rank 1"):
        one.send(np.concatenate([sizes, gather.frame, gather.frame[:-1]]))


def test_the_loopback_tells_groups_apart() -> None:
    def asks(request: Request) -> Any:
        yield request

    one = AllToAll("w", np.zeros(2, np.uint8), [1, 1], "leaders")
    other = Broadcast("w", np.zeros(2, np.uint8), "node")
    with pytest.raises(ProtocolError) as caught:
        run_rounds([asks(one), asks(other)], 2)
    assert "rank 0: all-to-all of 'w' between nodes" in str(caught.value)
    assert "rank 1: broadcast of 'w' inside nodes" in str(caught.value)


def test_what_the_commands_say() -> None:
    run = model_run(config_of("topk(ratio=0.01)"), {"w": (64, 80)}, workers=4)
    assert run.node_bytes > 4 * 64 * 80
    assert run.total.sent_bytes < 4 * 64 * 80 / 50
    assert "allowed: gather, sra, sparse_allreduce, two_level\n" in explain("topk(k=5)")
    assert "allowed: reduce, gather, sra, two_level\n" in explain("fp16")


def test_members_of_groups() -> None:
    def asks(request: Request) -> Any:
        return (yield request)

    arrays = [np.full(1, float(rank), np.float32) for rank in range(6)]
    for group, expected in {
        "all": [2.5] * 6,
        "node": [1.0] * 3 + [4.0] * 3,
        "leaders": [1.5, None, None, 1.5, None, None],
    }.items():
        replies = run_rounds([asks(AllReduce("w", one, group)) for one in arrays], 3)  # type: ignore[arg-type]
        assert [reply if reply is None else float(reply[0]) for reply in replies] == expected
    assert math.isfinite(float(arrays[0][0]))
