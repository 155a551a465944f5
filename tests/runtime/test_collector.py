"""Buckets of gradients that come one by one, over an engine of threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from gradcomp import Config, Loopback, Pipeline, ProtocolError
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.spec import parse
from gradcomp.exchange.engine import Driver
from gradcomp.runtime.collector import Collector, Route
from support.core_device import CoreDevice
from support.pipelines import config_of, send
from support.thread_engine import RANKS, Board, Engine, on_all_ranks

SHAPES = {"a": (40, 10), "b": (300,), "c": (20, 20), "d": (5,), "e": (100, 3)}


def gradient(name: str, step: int, rank: int) -> FloatArray:
    seed = [ord(name), step, rank]
    return np.random.default_rng(seed).standard_normal(SHAPES[name], np.float32)


def add(
    collector: Collector, name: str, grad: FloatArray, dense_bytes: int, beside: bool = False
) -> None:
    resolved = collector.resolve(name, grad.shape)
    collector.add(resolved, grad, dense_bytes, beside=beside)


def train(
    settings: Config, names: Mapping[int, list[str]], steps: int = 3, beside: bool = False
) -> tuple[list[list[dict[str, FloatArray]]], list[Engine]]:
    """The averages of each rank's collector, step by step, and the engines."""
    board = Board()
    engines = [Engine(board, rank) for rank in range(RANKS)]

    def rank_main(rank: int) -> list[dict[str, FloatArray]]:
        pipeline = Pipeline(settings, rank, RANKS)
        collector = Collector(Driver(engines[rank]), pipeline, SHAPES)
        random = np.random.default_rng([rank, 7])
        results = []
        for step in range(steps):
            collector.begin_step()
            for name in random.permutation(names[step]).tolist():
                add(collector, name, gradient(name, step, rank), 1, beside)
            if beside:
                collector.settle()
            averages = {
                name: collector.finish(name) for name in random.permutation(names[step]).tolist()
            }
            results.append(averages)
        return results

    return on_all_ranks(rank_main), engines


def rounds_of(engine: Engine) -> list[str]:
    """The first requests of rounds, without the comparison in each step."""
    return [name for name in engine.started if name != "step.check"]


def check_as_in_the_loopback(
    results: list[list[dict[str, FloatArray]]],
    settings: Config,
    steps: int = 3,
    names: Iterable[str] = SHAPES,
) -> None:
    """Check that all ranks' averages equal the loopback's to the last bit."""
    loop = Loopback(settings, RANKS)
    for step in range(steps):
        grads = {name: [gradient(name, step, rank) for rank in range(RANKS)] for name in names}
        expected = {name: one[0].tobytes() for name, one in loop.step(grads).items()}
        for of_rank in results:
            found = {name: average.tobytes() for name, average in of_rank[step].items()}
            assert found == expected


RAMPS = (
    "residual|globaltopk(ratio=ramp(from=0.25,to=0.01,steps=8))",
    "chunk_allreduce(ratio=ramp(from=0.25,to=0.1,steps=8),chunk=16)",
)
"""Their aggregators differ between steps, and so do the buckets of tensors at different steps."""

ALL = {step: list(SHAPES) for step in range(3)}


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("bucket_bytes", [0, 1, 2000, 4 * 2**20])
@pytest.mark.parametrize("spec", ["residual|topk(ratio=0.1)", "residual|sign", "int4"])
def test_averages_are_those_of_single_tensors(spec: str, bucket_bytes: int, beside: bool) -> None:
    results, _ = train(config_of(spec, bucket_bytes=bucket_bytes), ALL, beside=beside)
    check_as_in_the_loopback(results, config_of(spec, bucket_bytes=0))


def test_buckets_follow_the_specs() -> None:
    plan = ["sign", {"from_step": 1, "use": "residual|globaltopk(k=3)"}]
    settings = config_of([*plan, {"from_step": 2, "use": "identity"}], bucket_bytes=2000)
    results, engines = train(settings, ALL)
    check_as_in_the_loopback(results, settings)
    for engine in engines:
        assert sorted(rounds_of(engine)[:2]) == ["b+1", "e+2"]
        assert sorted(rounds_of(engine)[-5:]) == sorted(SHAPES)


def test_buckets_are_filled_from_the_last_tensor_on() -> None:
    _, engines = train(config_of("sign", bucket_bytes=2000), ALL, steps=1)
    # e and d have 1,220 bytes, c brings them to 2,820; b and a have 2,800.
    for engine in engines:
        assert sorted(rounds_of(engine)) == ["b+1", "e+2"]
    _, engines = train(config_of("sign", bucket_bytes=0), ALL, steps=1)
    for engine in engines:
        assert sorted(rounds_of(engine)) == sorted(SHAPES)


def test_globaltopk_chooses_over_the_bucket_as_in_the_loopback() -> None:
    settings = config_of("residual|globaltopk(ratio=0.05)", bucket_bytes=4 * 2**20)
    results, _ = train(settings, ALL)
    check_as_in_the_loopback(results, settings)


def test_parameters_without_a_gradient_hold_nothing_up() -> None:
    names = {0: list("abcde"), 1: list("ace"), 2: list("bd")}
    results, engines = train(config_of("topk(ratio=0.1)", bucket_bytes=2000), names)
    for of_rank in results:
        assert [sorted(averages) for averages in of_rank] == [
            list("abcde"),
            list("ace"),
            list("bd"),
        ]
    # A tensor that is alone in its bucket goes by its own name.
    assert rounds_of(engines[0])[2:4] == ["e+1", "a"]
    assert sorted(rounds_of(engines[0])[4:]) == ["b", "d"]


@pytest.mark.parametrize("spec", RAMPS)
def test_a_tensor_whose_step_lags_behind_travels_apart(spec: str) -> None:
    """Tensor c comes late: its ratio is of another step, so it cannot share the bucket."""
    settings = config_of(spec, bucket_bytes=4 * 2**20)
    names = {0: list("abde"), 1: list("abcde"), 2: list("abcde")}
    results, _ = train(settings, names)
    for of_rank in results:
        for one, other in zip(of_rank, results[0], strict=True):
            assert {n: a.tobytes() for n, a in one.items()} == {
                n: a.tobytes() for n, a in other.items()
            }
    assert [sorted(averages) for averages in results[0]] == [list("abde"), *[list("abcde")] * 2]


@pytest.mark.parametrize("spec", RAMPS)
def test_schedules_go_on_beside_a_parameter_without_a_gradient(spec: str) -> None:
    """Its step stays behind, and so does its ratio; the others still share a bucket."""
    settings = config_of(spec, bucket_bytes=4 * 2**20)
    results, _ = train(settings, {step: list("abde") for step in range(3)})
    check_as_in_the_loopback(results, settings, names="abde")


def alone(spec: str = "sign") -> tuple[Collector, Engine]:
    engine = Engine(Board(ranks=1), 0)
    return Collector(Driver(engine), Pipeline(config_of(spec, bucket_bytes=2000)), SHAPES), engine


def test_a_full_bucket_starts_at_once() -> None:
    collector, engine = alone()
    for name in ("c", "d"):
        add(collector, name, gradient(name, 0, 0), 1)
    assert engine.started == []
    add(collector, "e", gradient("e", 0, 0), 1)
    assert engine.started == ["e+2"]


def test_a_tensor_that_comes_twice_in_a_step_is_refused() -> None:
    collector, _ = alone()
    add(collector, "a", gradient("a", 0, 0), 1)
    with pytest.raises(ProtocolError, match=r"'a' came twice .* backward_passes_per_step"):
        add(collector, "a", gradient("a", 0, 0), 1)
    for name in "bcde":
        add(collector, name, gradient(name, 0, 0), 1)
    for name in SHAPES:
        collector.finish(name)
    add(collector, "a", gradient("a", 1, 0), 1)  # the next step


def test_a_step_that_fails_can_be_followed_by_another() -> None:
    collector, engine = alone()
    for name in SHAPES:
        add(collector, name, gradient(name, 0, 0), 1)
    engine.board.ranks = 2  # one who never comes
    engine.patience = 0.1
    with pytest.raises(TimeoutError):
        collector.finish("a")
    engine.board.ranks = 1
    for name in SHAPES:
        add(collector, name, gradient(name, 1, 0), 1)
    for name in SHAPES:
        assert collector.finish(name).size == np.prod(SHAPES[name])


def test_a_tensor_that_nobody_announced_travels_alone() -> None:
    collector, engine = alone()
    add(collector, "z", np.ones(10, np.float32), 40)
    assert engine.started == ["z"]
    assert collector.finish("z").tolist() == [1] * 10


def test_an_algorithm_that_begins_later_is_dense_until_then() -> None:
    """The engine adds the first steps, which have no state; then the algorithm is where a device is."""
    settings = config_of("powersgd(rank=1,start_step=2,variant=library)", device="auto")
    pipeline, device = Pipeline(settings, 0, 1), CoreDevice()
    collector = Collector(Driver(Engine(Board(), 0)), pipeline, SHAPES)
    routes = []
    for _ in range(4):
        resolved = pipeline.resolve("a", SHAPES["a"])
        route = collector.route(resolved, sums_dtype=True)
        routes.append((route, pipeline.on_device(resolved, device)))
        # A graph that is traced once must not be dense for ever.
        assert not pipeline.always_dense(resolved)
        assert collector.route(resolved, sums_dtype=False) is Route.COLLECTED
        if route is Route.DENSE:
            pipeline.count_dense({"a": 1600})
            assert not pipeline.state_dict()["residual"]
        else:
            send(pipeline, gradient("a", 0, 0), "a")
    assert routes == [(Route.DENSE, False)] * 2 + [(Route.COLLECTED, True)] * 2


def routes_of_steps(spec: str, steps: int) -> tuple[list[Any], Collector, Pipeline]:
    """`Collector.routes` in some steps with all tensors."""
    pipeline = Pipeline(config_of(spec), 0, 1)
    collector = Collector(Driver(Engine(Board(ranks=1), 0)), pipeline, SHAPES)
    return [routes_of_step(collector, step) for step in range(steps)], collector, pipeline


def routes_of_step(collector: Collector, step: int) -> Any:
    collector.begin_step()
    routes = collector.routes
    for name in SHAPES:
        add(collector, name, gradient(name, step, 0), 1)
    collector.averages(list(SHAPES))
    return routes


def test_routes_hold_until_something_changes_them() -> None:
    (first, second, third), collector, pipeline = routes_of_steps("residual|topk(k=3)", 3)
    assert first != second  # each tensor has had its first spec
    assert second is not None
    assert second == third
    pipeline.load_state_dict(pipeline.state_dict())
    loaded = routes_of_step(collector, 3)
    assert loaded not in (None, third)
    assert routes_of_step(collector, 4) == loaded
    pipeline.stats.start_profile(error=True)  # rounds have one more phase, on the host
    assert routes_of_step(collector, 5) is None
    pipeline.stats.stop_profile()
    assert routes_of_step(collector, 6) == loaded
    pipeline.last_step.allow_discard()
    routes_of_step(collector, 7)
    pipeline.last_step.discard()
    assert routes_of_step(collector, 7) != loaded


def test_routes_may_change_while_an_algorithm_waits_and_with_schedules() -> None:
    routes, _, _ = routes_of_steps("powersgd(rank=1,start_step=2,variant=library)", 5)
    assert routes[:2] == [None, None]
    assert routes[3] == routes[4] is not None
    scheduled = "residual|topk(ratio=ramp(from=0.25,to=0.1,steps=2))"
    routes, collector, pipeline = routes_of_steps(scheduled, 2)
    assert routes == [None] * 2
    early = pipeline.state_dict()
    # The ramp has ended; a state of before begins it again.
    last = [routes_of_step(collector, step) for step in (2, 3)]
    assert last[0] == last[1] is not None
    pipeline.last_step.allow_discard()
    assert routes_of_step(collector, 4) == last[0]
    early["rounds"] = dict.fromkeys(SHAPES, 1)
    pipeline.load_state_dict(early)
    assert routes_of_step(collector, 1) is None
    assert collector.resolve("a", SHAPES["a"]).aggregator is not None
    pipeline.last_step.discard()
    assert routes_of_step(collector, 1) is None
    assert routes_of_step(collector, 2) not in (None, last[0])


def test_no_step_before_the_last_change_of_a_schedule_is_steady() -> None:
    spec = parse("topk(ratio=steps([0.1,0.5,0.1],every=3))")
    steady = [spec.steady(step, 0) for step in range(8)]
    assert steady == [None] * 6 + [parse("topk(ratio=0.1)")] * 2
    assert parse("topk(ratio=ramp(from=0.5,to=0.1,steps=4))").steps_end == 4
    assert parse("topk(ratio=epochs([0.5,0.1]))").steps_end == 0


def test_routes_hold_as_long_as_the_decisions_of_a_policy() -> None:
    spec = "residual|topk(k=3)"
    times = {"dense": 1.0, "fp16": 9.0, "compressed": 9.0}
    groups = [{"use": spec, "numel": numel, **times} for numel in (400, 5)]
    prior = {"ranks": 1, "groups": groups}
    pipeline = Pipeline(config_of(spec, policy="auto", prior=prior), 0, 1)
    collector = Collector(Driver(Engine(Board(ranks=1), 0)), pipeline, SHAPES)
    decided = [routes_of_step(collector, step) for step in range(4)]
    assert decided[2] == decided[3] is not None
    assert collector.resolve("a", SHAPES["a"]).dense
    pipeline.policy.measure_anew()
    measured = [routes_of_step(collector, step) for step in range(4, 8)]
    assert measured == [None] * 4
    while not pipeline.policy.decisions:
        routes_of_step(collector, 8)
    again = [routes_of_step(collector, step) for step in range(9, 12)]
    assert again[1] == again[2] not in (None, decided[3])


def test_a_residual_of_an_earlier_spec_is_not_left_behind() -> None:
    """It is added to the first gradient of an algorithm that begins later, so no engine adds that one."""
    specs = [
        {"use": "residual|topk(k=3)"},
        {"from_step": 1, "use": "powersgd(rank=1,start_step=3)"},
    ]
    pipeline = Pipeline(config_of(specs), 0, 1)
    collector = Collector(Driver(Engine(Board(), 0)), pipeline, SHAPES)
    send(pipeline, gradient("a", 0, 0), "a")
    resolved = pipeline.resolve("a", SHAPES["a"])
    assert resolved.spec.canonical.startswith("powersgd")
    assert collector.route(resolved, sums_dtype=True) is Route.COLLECTED
