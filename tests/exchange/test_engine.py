"""The driver of rounds, over an engine with threads as ranks."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from gradcomp.codec.arrays import FloatArray
from gradcomp.errors import ProtocolError
from gradcomp.exchange.engine import Driver
from gradcomp.exchange.rounds import AllGather, AllReduce, BucketRound, Ready, Round
from gradcomp.runtime.loopback import run_rounds
from support.thread_engine import PATIENCE, RANKS, Board, Engine, on_all_ranks

NAMES = [f"layer{position}" for position in range(5)]


def phases(name: str, values: FloatArray, count: int) -> Round:
    """A round of a number of phases, the last a gather; later ones depend on earlier replies."""
    for phase in range(count - 1):
        values = values * (yield AllReduce(f"{name}.{phase}", values))
    frames = yield AllGather(f"{name}.frames", values.view(np.uint8))
    return sum((frame.view(np.float32) for frame in frames), np.zeros(4, np.float32))


def round_of(name: str, step: int, rank: int) -> Round:
    """Rounds of one, two and three phases."""
    position = NAMES.index(name)
    values = np.random.default_rng([position, step, rank]).standard_normal(4, np.float32)
    return phases(name, values, 1 + position % 3)


def in_lockstep(name: str, step: int) -> FloatArray:
    return run_rounds([round_of(name, step, rank) for rank in range(RANKS)])[0]


def orders(rank: int, seed: int) -> tuple[list[str], list[str]]:
    """The orders in which a rank starts and finishes rounds; each rank has its own."""
    random = np.random.default_rng([rank, seed])
    return random.permutation(NAMES).tolist(), random.permutation(NAMES).tolist()


@pytest.mark.parametrize("seed", range(10))
def test_ranks_may_start_and_finish_in_different_orders(seed: int) -> None:
    board = Board()
    drivers = [Driver(Engine(board, rank)) for rank in range(RANKS)]

    def rank_main(rank: int) -> list[dict[str, FloatArray]]:
        steps = []
        for step in range(3):
            starts, finishes = orders(rank, seed)
            for name in starts:
                drivers[rank].start(name, round_of(name, step, rank))
            steps.append({name: drivers[rank].finish(name) for name in finishes})
        return steps

    for of_rank in on_all_ranks(rank_main):
        for step, averages in enumerate(of_rank):
            for name, average in averages.items():
                np.testing.assert_array_equal(average, in_lockstep(name, step))


def test_later_phases_start_in_the_same_order_on_every_rank() -> None:
    board = Board()
    engines = [Engine(board, rank) for rank in range(RANKS)]

    def rank_main(rank: int) -> None:
        driver = Driver(engines[rank])
        starts, finishes = orders(rank, 0)
        for name in starts:
            driver.start(name, round_of(name, 0, rank))
        for name in finishes:
            driver.finish(name)

    on_all_ranks(rank_main)
    first = [engine.started[: len(NAMES)] for engine in engines]
    later = [engine.started[len(NAMES) :] for engine in engines]
    assert len({tuple(order) for order in first}) > 1
    assert len(later[0]) == 4
    assert later[0] == later[1] == later[2]


def test_this_engine_tells_a_driver_that_would_deadlock() -> None:
    """One that runs a round to its end before it looks at the next."""
    board = Board()

    def rank_main(rank: int) -> None:
        engine = Engine(board, rank, patience=0.2)
        running = {name: round_of(name, 0, rank) for name in ("layer1", "layer2")}
        handles = {name: engine.start(next(one)) for name, one in running.items()}
        for name in sorted(running, reverse=rank == 0):
            while name in running:
                reply = engine.finish(handles[name])
                try:
                    handles[name] = engine.start(running[name].send(reply))
                except StopIteration:
                    del running[name]

    with pytest.raises(TimeoutError, match="was started by ranks"):
        on_all_ranks(rank_main)


def alone(patience: float = PATIENCE) -> tuple[Driver, Engine]:
    """A driver of a world of one rank."""
    engine = Engine(Board(ranks=1), 0, patience)
    return Driver(engine), engine


def test_first_requests_are_on_their_way_at_once() -> None:
    driver, engine = alone()
    for name in reversed(NAMES):
        driver.start(name, round_of(name, 0, 0))
    assert len(engine.started) == len(NAMES)


def test_the_first_finish_runs_all_rounds() -> None:
    driver, engine = alone()
    for name in NAMES:
        driver.start(name, round_of(name, 0, 0))
    driver.finish("layer3")
    started = list(engine.started)
    assert len(started) == 9
    for name in ("layer4", "layer0", "layer2", "layer1"):
        np.testing.assert_array_equal(driver.finish(name), run_rounds([round_of(name, 0, 0)])[0])
    assert engine.started == started


def test_an_average_is_given_out_once() -> None:
    driver, _ = alone()
    driver.start("layer0", round_of("layer0", 0, 0))
    driver.finish("layer0")
    with pytest.raises(KeyError):
        driver.finish("layer0")


def test_a_tensor_that_comes_twice_in_a_step_is_refused() -> None:
    driver, engine = alone()
    driver.start("layer0", round_of("layer0", 0, 0))
    with pytest.raises(ProtocolError, match=r"'layer0' came twice .* backward_passes_per_step"):
        driver.start("layer0", round_of("layer0", 1, 0))
    assert len(engine.started) == 1
    expected = run_rounds([round_of("layer0", 0, 0)])[0]
    np.testing.assert_array_equal(driver.finish("layer0"), expected)
    driver.start("layer0", round_of("layer0", 1, 0))  # the next step


def failing_round(name: str, phase: int) -> Round:
    values = np.ones(4, np.float32)
    for position in range(phase):
        yield AllReduce(f"{name}.{position}", values)
    raise ArithmeticError(f"in phase {phase}")


def names_after(driver: Driver, names: Sequence[str]) -> None:
    """The driver takes up all of them again."""
    for name in names:
        driver.start(name, round_of(name, 1, 0))
    for name in names:
        np.testing.assert_array_equal(driver.finish(name), run_rounds([round_of(name, 1, 0)])[0])


def test_a_round_that_fails_at_once_was_never_started() -> None:
    driver, _ = alone()
    with pytest.raises(ArithmeticError, match="in phase 0"):
        driver.start("layer0", failing_round("layer0", 0))
    names_after(driver, NAMES)


@pytest.mark.parametrize("phase", [1, 2])
def test_a_round_that_fails_ends_the_step_for_all(phase: int) -> None:
    driver, _ = alone()
    driver.start("layer0", round_of("layer0", 0, 0))
    driver.start("layer1", round_of("layer1", 0, 0))
    driver.start("layer2", failing_round("layer2", phase))
    with pytest.raises(ArithmeticError, match=f"in phase {phase}"):
        driver.finish("layer1")
    # layer0 had its average by then: it is of a step that nobody can finish.
    with pytest.raises(KeyError):
        driver.finish("layer0")
    names_after(driver, NAMES)


def test_an_engine_that_fails_ends_the_step_for_all() -> None:
    driver, engine = alone(patience=0.1)
    engine.board.ranks = 2  # one who never comes
    for name in NAMES:
        driver.start(name, round_of(name, 0, 0))
    with pytest.raises(TimeoutError, match="started by ranks \\[0\\] only"):
        driver.finish("layer1")
    engine.board.ranks = 1
    names_after(driver, NAMES)


def of_thread(names: list[str], name: str, step: int) -> Round:
    """A round that notes the thread which begins it."""
    names.append(threading.current_thread().name)
    return (yield from round_of(name, step, 0))


def test_rounds_beside_begin_on_one_thread_in_the_order_of_starts() -> None:
    driver, engine = alone()
    threads: list[str] = []
    for name in reversed(NAMES):
        driver.start(name, of_thread(threads, name, 0), beside=True)
    driver.release()
    assert [one.partition(".")[0] for one in engine.started] == NAMES[::-1]
    assert len(set(threads)) == 1
    assert threads[0].startswith("gradcomp-encoder")
    for name in NAMES:
        np.testing.assert_array_equal(driver.finish(name), run_rounds([round_of(name, 0, 0)])[0])


def test_all_other_requests_wait_for_the_thread() -> None:
    driver, engine = alone()
    others: list[Callable[[], object]] = [
        lambda: driver.post(AllReduce("other", np.ones(1, np.float32))),
        lambda: driver.run(round_of("layer0", 1, 0)),
        lambda: driver.start("layer1", round_of("layer1", 0, 0)),
    ]
    for other in others:
        gate = threading.Event()
        threading.Timer(0.05, gate.set).start()
        before = len(engine.started)
        driver.start("layer2", held(gate, round_of("layer2", 0, 0)), beside=True)
        assert len(engine.started) == before
        other()
        assert engine.started[before].startswith("layer2")
        driver.finish_all()


def held(gate: threading.Event, inner: Round) -> Round:
    """A round that does not begin before the gate is open."""
    assert gate.wait(PATIENCE)
    return (yield from inner)


@pytest.mark.parametrize("end", ["release", "finish_all"])
def test_a_round_that_fails_beside_ends_the_step_for_all(end: str) -> None:
    driver, engine = alone()
    driver.start("layer0", round_of("layer0", 0, 0), beside=True)
    driver.start("layer1", failing_round("layer1", 0), beside=True)
    driver.start("layer2", round_of("layer2", 0, 0), beside=True)
    with pytest.raises(ArithmeticError, match="in phase 0"):
        getattr(driver, end)()
    assert [one.partition(".")[0] for one in engine.started] == ["layer0"]
    names_after(driver, NAMES)


def test_the_thread_ends_with_its_driver() -> None:
    driver, _ = alone()
    threads: list[threading.Thread] = []

    def begins() -> Round:
        threads.append(threading.current_thread())
        return (yield from round_of("layer0", 0, 0))

    driver.start("layer0", begins(), beside=True)
    driver.finish("layer0")
    del driver
    gc.collect()
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()


def nothing_to_send(name: str, *, of_device: bool) -> BucketRound:
    if of_device:
        yield Ready(name, lambda: None)
    yield from ()
    return [np.full(4, position, np.float32) for position in range(2)]


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("of_device", [False, True])
def test_rounds_may_end_without_a_request(of_device: bool, beside: bool) -> None:
    board = Board()

    def rank_main(rank: int) -> list[FloatArray]:
        driver = Driver(Engine(board, rank))
        driver.start("before", round_of(NAMES[1], 0, rank))
        for bucket in "ab":
            round_ = nothing_to_send(bucket, of_device=of_device)
            driver.start(bucket, round_, [f"{bucket}0", f"{bucket}1"], beside=beside)
        driver.start("after", round_of(NAMES[2], 0, rank))
        return [driver.finish(name) for name in ("a0", "a1", "b0", "b1", "before", "after")]

    for *own, before, after in on_all_ranks(rank_main):
        assert [average[0] for average in own] == [0, 1, 0, 1]
        np.testing.assert_array_equal(before, in_lockstep(NAMES[1], 0))
        np.testing.assert_array_equal(after, in_lockstep(NAMES[2], 0))
