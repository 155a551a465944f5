"""One rank's pipeline: rules, statistics, and a state that survives a restart."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradcomp import Pipeline, StateError, Stats, get_codec
from gradcomp.exchange.rounds import AllGather, AllReduce, TensorKey
from gradcomp.runtime.loopback import run_rounds
from support.pipelines import configured

NAMES = {"a.weight": (64, 70), "b.weight": (5000, 1), "a.bias": (64,)}


def gradient(name: str, rank: int, step: int) -> np.ndarray:
    rng = np.random.default_rng([rank, step, *name.encode()])
    return rng.normal(size=NAMES[name]).astype(np.float32)


def run(pipelines: list[Pipeline], steps: range) -> list[bytes]:
    """All averages of some steps, as bytes."""
    results = []
    for step in steps:
        for name in NAMES:
            rounds = [
                pipeline.round(name, gradient(name, pipeline.rank, step)) for pipeline in pipelines
            ]
            results += [average.tobytes() for average in run_rounds(rounds)]
    return results


def world(spec: str, size: int) -> list[Pipeline]:
    return [Pipeline(configured(spec, seed=3), rank, size) for rank in range(size)]


# ------------------------------------------------------------------------------------------ rules


@pytest.mark.parametrize(("rank", "size"), [(-1, 1), (1, 1), (2, 2), (0, 0)])
def test_rank_is_below_the_world_size(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=rf"rank is {rank}; it must be in \[0, {size}\)"):
        Pipeline("fp16", rank, size)


def test_small_tensors_travel_dense() -> None:
    pipeline = Pipeline("residual|topk(ratio=0.01)|raw32")
    assert pipeline.sends_dense(pipeline.resolve("bias", (5000,)))
    assert pipeline.sends_dense(pipeline.resolve("w", (63, 65)))
    assert not pipeline.sends_dense(pipeline.resolve("w", (64, 64)))
    pipeline = Pipeline("residual|identity")
    assert not pipeline.sends_dense(pipeline.resolve("w", (64, 64)))
    pipeline = Pipeline("identity")
    assert pipeline.sends_dense(pipeline.resolve("w", (64, 64)))


def test_default_rules_are_decided_for_each_call() -> None:
    """Decisions are cached, with and without default rules."""
    pipeline = Pipeline("fp16")
    for default_rules, spec in ((True, "identity"), (False, "fp16(overflow=inf)")) * 2:
        assert str(pipeline.resolve("", (64,), default_rules).spec) == spec


def test_requests_follow_from_the_codec() -> None:
    grad = np.ones((64, 64), np.float32)
    request = next(Pipeline("identity").round("w", grad))
    assert isinstance(request, AllReduce)
    assert np.shares_memory(request.array, grad), "a dense gradient is not copied"
    request = next(Pipeline("fp16").round("w", grad))
    assert isinstance(request, AllReduce)
    assert (request.name, request.array.dtype, request.array.shape) == ("w", np.float16, (4096,))
    request = next(Pipeline("topk(k=5)").round("w", grad))
    assert isinstance(request, AllGather)
    assert request.name == "w"
    assert get_codec("topk(k=5)").decode(request.frame).sum() == 5


def test_seed_step_and_name_choose_the_random_stream() -> None:
    def payload(name: str, seed: int, step: int) -> bytes:
        pipeline = Pipeline(configured("randomk(k=7)", seed))
        grad = np.arange(4096, dtype=np.float32).reshape(64, 64)
        for _ in range(step):
            pipeline.round(name, grad)
        request = next(pipeline.round(name, grad))
        tensor_id = TensorKey(name, (64, 64), 4096).tensor_id
        codec = get_codec("randomk(k=7)")
        expected = codec.encode_payload(grad, seed=seed, step=step, tensor_id=tensor_id)
        assert request.array.tobytes() == expected.tobytes()
        return expected.tobytes()

    calls = [("w", 0, 0), ("v", 0, 0), ("w", 1, 0), ("w", 0, 1), ("w", 0, 2)]
    assert len({payload(*call) for call in calls}) == len(calls)


# ------------------------------------------------------------------------------------- statistics


def test_stats_count_what_is_really_sent() -> None:
    pipelines = world("residual|topk(ratio=0.01)|raw32", 2)
    sent = {"allreduce": 0, "allgather": 0}
    dense = 0
    for step in range(3):
        for name in NAMES:
            rounds = [one.round(name, gradient(name, one.rank, step)) for one in pipelines]
            dense += gradient(name, 0, step).nbytes
            requests = [next(one) for one in rounds]
            request = requests[0]
            if isinstance(request, AllGather):
                sent["allgather"] += len(request.frame.tobytes())
                replies = [[one.frame for one in requests]] * 2
            else:
                sent["allreduce"] += len(request.array.tobytes())
                replies = [one.array for one in requests]
            for one, reply in zip(rounds, replies, strict=True):
                with pytest.raises(StopIteration):
                    one.send(reply)
    stats = pipelines[0].stats
    assert stats.sent_bytes == sent
    assert sent["allgather"] == 3 * (24 + 8 + 8 * 45 + 4 + 24 + 8 + 8 * 50 + 4)
    assert sent["allreduce"] == 3 * 4 * 64
    assert stats.total_bytes == sum(sent.values())
    assert stats.dense_bytes == dense
    assert stats.steps == 3
    assert stats.bytes_per_step == sum(sent.values()) / 3
    assert stats.ratio == dense / sum(sent.values())
    assert stats.link_bytes == sent["allreduce"] + sent["allgather"]
    assert stats.dense_link_bytes == dense
    assert stats.link_ratio == stats.ratio, "with two ranks"


def test_stats_before_the_first_step() -> None:
    stats = Pipeline("fp16").stats
    assert stats == Stats()
    assert (stats.total_bytes, stats.bytes_per_step, stats.ratio, stats.steps) == (0, 0.0, 1.0, 0)
    assert (stats.link_bytes, stats.link_ratio) == (0, 1)


def test_dense_bytes_of_another_dtype_and_tensors_the_engine_sends() -> None:
    pipeline = Pipeline("fp16")
    next(pipeline.round("w", np.ones((64, 64), np.float32), dense_bytes=8 * 4096))
    pipeline.count_dense({"bias": 40})
    assert pipeline.stats.dense_bytes == 8 * 4096 + 40
    assert pipeline.stats.sent_bytes == {"allreduce": 2 * 4096 + 40}
    assert pipeline.stats.steps == 1
    pipeline.count_dense({"bias": 40})
    assert pipeline.stats.steps == 2
    assert pipeline.state_dict()["rounds"] == {"w": 1, "bias": 2}


# ------------------------------------------------------------------------------------------- state

STATEFUL = ["residual|topk(ratio=0.05)", "residual(beta=0.9)|randomk(ratio=0.05)", "residual|bf16"]


@pytest.mark.parametrize(
    "spec", [*STATEFUL, "randomk(ratio=0.05)", "fp16", "adaptive(rate=0.5)", "residual|adaptive"]
)
@pytest.mark.parametrize("store", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_a_resumed_run_continues_bit_for_bit(spec: str, store: Callable[[Any], Any]) -> None:
    expected = run(world(spec, 3), range(6))
    first = world(spec, 3)
    results = run(first, range(2))
    states = [store(pipeline.state_dict()) for pipeline in first]
    resumed = world(spec, 3)
    for pipeline in resumed:
        pipeline.load_state_dict(states[pipeline.rank])
    results += run(resumed, range(2, 4))
    again = world(spec, 3)
    for pipeline in again:  # all ranks' states, in any order
        pipeline.load_state_dict([one.state_dict() for one in reversed(resumed)])
    results += run(again, range(4, 6))
    assert results == expected


def test_without_its_state_a_run_differs() -> None:
    spec = STATEFUL[0]
    whole = run(world(spec, 3), range(4))
    parts = run(world(spec, 3), range(2)) + run(world(spec, 3), range(2, 4))
    assert parts[: len(parts) // 2] == whole[: len(parts) // 2]
    assert parts[len(parts) // 2 :] != whole[len(parts) // 2 :]


def test_state_dict_holds_plain_copies() -> None:
    (pipeline,) = world(STATEFUL[0], 1)
    run([pipeline], range(1))
    state = pipeline.state_dict()
    assert (state["version"], state["rank"], state["world_size"]) == (1, 0, 1)
    assert state["rounds"] == dict.fromkeys(NAMES, 1)
    assert {name: value.shape for name, value in state["residual"].items()} == {
        "a.weight": (4480,),
        "b.weight": (5000,),
    }
    before = pickle.dumps(pipeline.state_dict())
    state["residual"]["a.weight"].fill(9)
    state["rounds"]["a.weight"] = 9
    assert pickle.dumps(pipeline.state_dict()) == before


def test_load_state_dict_copies_too() -> None:
    first, second = world(STATEFUL[0], 1)[0], world(STATEFUL[0], 1)[0]
    run([first], range(1))
    state = first.state_dict()
    second.load_state_dict(state)
    expected = pickle.dumps(second.state_dict())
    state["residual"]["a.weight"].fill(9)
    assert pickle.dumps(second.state_dict()) == expected


def test_loading_forgets_what_was_there() -> None:
    (pipeline,) = world(STATEFUL[0], 1)
    empty = pipeline.state_dict()
    fresh = run([pipeline], range(2))
    pipeline.load_state_dict(empty)
    assert pipeline.state_dict()["residual"] == {}
    assert run([pipeline], range(2)) == fresh


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 3), (3, 1), (1, 4)])
def test_another_world_size_preserves_the_mean_of_the_residuals(old: int, new: int) -> None:
    spec = STATEFUL[0]
    first = world(spec, old)
    run(first, range(3))
    states = [pipeline.state_dict() for pipeline in first]
    second = world(spec, new)
    for pipeline in second:
        pipeline.load_state_dict(states[::-1])
        assert pipeline.state_dict()["rounds"] == dict.fromkeys(NAMES, 3)
    for name in ("a.weight", "b.weight"):
        total = states[0]["residual"][name].copy()
        for state in states[1:]:
            total += state["residual"][name]
        expected = total / np.float32(old)
        exact = np.mean([state["residual"][name] for state in states], axis=0, dtype=np.float64)
        assert np.abs(exact).max() > 0
        for pipeline in second:
            residual = pipeline.state_dict()["residual"][name]
            assert residual.tobytes() == expected.tobytes()
            np.testing.assert_allclose(residual, exact, rtol=0, atol=1e-6)
    run(second, range(3, 4))


def test_a_rank_without_a_residual_counts_as_zero() -> None:
    states = [pipeline.state_dict() for pipeline in world(STATEFUL[0], 2)]
    states[1]["residual"]["w"] = np.full(3, 8, np.float32)
    (pipeline,) = world(STATEFUL[0], 1)
    pipeline.load_state_dict(states)
    assert pipeline.state_dict()["residual"]["w"].tolist() == [4, 4, 4]


def test_what_encoders_carry_stays_with_its_rank_and_the_number_of_ranks() -> None:
    first = world("adaptive", 2)
    run(first, range(1))
    states = [pipeline.state_dict() for pipeline in first]
    carried = [state["carried"]["a.weight"].tolist() for state in states]
    assert carried[0] != carried[1]
    for size, expected in ((2, carried[1]), (3, None)):
        pipeline = world("adaptive", size)[1]
        pipeline.load_state_dict(states)
        found = pipeline.state_dict()["carried"].get("a.weight")
        assert (None if found is None else found.tolist()) == expected


def test_the_largest_number_of_rounds_counts() -> None:
    states = [pipeline.state_dict() for pipeline in world("randomk(k=2)", 2)]
    states[0]["rounds"] = {"w": 5}
    states[1]["rounds"] = {"w": 6, "v": 1}
    for pipeline in world("randomk(k=2)", 2):
        pipeline.load_state_dict(states)
        assert pipeline.state_dict()["rounds"] == {"w": 6, "v": 1}


def states_of(size: int) -> list[dict[str, Any]]:
    return [pipeline.state_dict() for pipeline in world(STATEFUL[0], size)]


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in states_of(1)[0].items() if name != key}


REFUSALS: dict[str, tuple[object, str]] = {
    "another rank's": (states_of(2)[1], "compressor state of rank 1 of 2, and this is rank 0 of 2"),
    "another world's": (states_of(3)[0], "rank 0 of 3, and this is rank 0 of 2: load each rank's"),
    "none": ([], "an empty list of compressor states; give the states of all ranks"),
    "a rank is missing": (states_of(3)[:2], r"each of the 3 ranks once; it holds ranks \[0, 1\]"),
    "a rank twice": ([states_of(2)[0]] * 2, r"each of the 2 ranks once; it holds ranks \[0, 0\]"),
    "too many": (
        [*states_of(2), states_of(2)[1]],
        r"each of the 2 ranks once; it holds ranks \[0, 1, 1\]",
    ),
    "of two worlds": (
        [states_of(2)[0], states_of(3)[1]],
        "of different world sizes: 2, 3",
    ),
    "an unknown version": (
        {**states_of(2)[0], "version": 2},
        "compressor state of version 2; this gradcomp reads 1",
    ),
    "no residual": (without("residual"), "not a compressor state: it lacks residual"),
    "something else": (
        {"model": {}},
        "it lacks basis, carried, decisions, dion_q, loss_scale, momentum, powersgd_p, powersgd_q, rank, "
        "ranks_per_node, residual, residual_lr, rounds, specs, version, world_size",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_state_that_does_not_fit_is_refused(name: str) -> None:
    state, says = REFUSALS[name]
    pipelines = world(STATEFUL[0], 2)
    run(pipelines, range(1))
    before = pickle.dumps(pipelines[0].state_dict())
    with pytest.raises(StateError, match=says):
        pipelines[0].load_state_dict(state)
    assert pickle.dumps(pipelines[0].state_dict()) == before, "a refused state changes nothing"


def test_states_of_different_models_are_refused() -> None:
    states = states_of(2)
    states[0]["residual"]["w"] = np.zeros(3, np.float32)
    states[1]["residual"]["w"] = np.zeros(4, np.float32)
    (pipeline,) = world(STATEFUL[0], 1)
    with pytest.raises(StateError, match="residuals of 'w' have 3 and 4 elements"):
        pipeline.load_state_dict(states)


def test_a_state_of_another_model_is_found_at_the_first_step() -> None:
    (pipeline,) = world(STATEFUL[0], 1)
    state = pipeline.state_dict()
    state["residual"]["a.weight"] = np.zeros(7, np.float32)
    pipeline.load_state_dict(state)
    with pytest.raises(StateError, match=r"residual of 'a\.weight' has 7 elements and its grad"):
        run([pipeline], range(1))


# ---------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("spec", ["residual|topk(ratio=0.1)", "powersgd(rank=2)", "signum|sign"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_continues_apart(spec: str, copied: Callable[[Any], Any]) -> None:
    pipelines = world(spec, 2)
    for one in pipelines:
        one.set_epoch(3)
        one.comparison.set_step(5)
    run(pipelines, range(3))
    copies = copied(pipelines)
    assert copies[0].comparison.fresh
    assert [one.comparison.text().tobytes() for one in copied(copies)] == [
        one.comparison.text().tobytes() for one in copies
    ]
    progress = copies[0].comparison.text().tobytes()
    assert b'"epoch":3' in progress.replace(b" ", b"")
    assert b"the script's step" in progress
    assert run(copies, range(3, 5)) == run(pipelines, range(3, 5))
    assert copies[0].stats.steps == 5


def test_a_copy_belongs_to_its_rank() -> None:
    pipeline = copy.deepcopy(world("residual|topk(ratio=0.1)", 2)[1])
    assert pipeline.mismatch(1, 2, 4) is None
    message = pipeline.mismatch(0, 3, 4)
    assert message is not None
    assert "rank 1 of 2" in message
    assert "rank 0 of 3" in message
