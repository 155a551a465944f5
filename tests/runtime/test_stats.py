"""Statistics of a rank."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from gradcomp import Loopback, Pipeline, ProtocolError, WireError
from gradcomp.exchange.engine import Driver
from gradcomp.runtime.collector import Collector
from gradcomp.runtime.measure.stats import RECENT
from support.thread_engine import RANKS, Board, Engine, on_all_ranks


def test_the_recent_ratio_forgets_a_warm_up() -> None:
    job = Loopback("powersgd(rank=1,start_step=8)", 2)
    stats = job.stats[0]
    assert stats.recent_ratio == stats.ratio == 1
    rng = np.random.default_rng(0)
    for step in range(8 + RECENT + 2):
        job.step({"w": [rng.standard_normal((100, 100), np.float32)] * 2})
        if step == 7:
            assert stats.recent_ratio == pytest.approx(1, rel=0.1)
            assert stats.recent_ratio == stats.ratio
    assert stats.recent_ratio > 45
    assert stats.ratio < 5


class Damaging(Engine):
    """Replies with frames of which an element has changed."""

    def finish(self, handle: Any) -> Any:
        reply = super().finish(handle)
        if isinstance(reply, list):
            reply = [np.bitwise_xor(np.array(frame), 1) for frame in reply]
        return reply


class Lost(Engine):
    """Other ranks do not answer a gather."""

    def finish(self, handle: Any) -> Any:
        if isinstance(super().finish(handle), list):
            raise TimeoutError("no answer")


@pytest.mark.parametrize(("kind", "error"), [(Damaging, WireError), (Lost, TimeoutError)])
def test_an_error_in_an_exchange_is_counted_once(kind: Any, error: type[Exception]) -> None:
    pipeline = Pipeline("topk(ratio=0.01)", 0, 1)
    driver = Driver(pipeline.profiled(kind(Board(1), 0)))
    with pytest.raises(error):
        driver.run(pipeline.round("w", np.ones((100, 100), np.float32)))
    assert pipeline.stats.as_dict()["faults"] == {error.__name__: 1}


def test_a_rank_at_another_step_is_a_fault() -> None:
    board = Board()
    faults = []

    def rank_main(rank: int) -> None:
        pipeline = Pipeline("topk(ratio=0.01)", rank, RANKS)
        collector = Collector(Driver(pipeline.profiled(Engine(board, rank))), pipeline, {})
        pipeline.comparison.set_step(rank)
        with pytest.raises(ProtocolError):
            _ = collector.begin_step(), collector.check()
        faults.append(dict(pipeline.stats.faults))

    on_all_ranks(rank_main)
    assert faults == [{"ProtocolError": 1}] * RANKS


def test_the_time_in_rounds_and_in_requests_is_counted() -> None:
    class Slow(Engine):
        def finish(self, handle: Any) -> Any:
            time.sleep(0.02)
            return super().finish(handle)

    pipeline = Pipeline("topk(ratio=0.01)", 0, 1)
    driver = Driver(pipeline.profiled(Slow(Board(1), 0)))
    for _ in range(3):
        driver.run(pipeline.round("w", np.ones((1000, 1000), np.float32)))
    stats = pipeline.stats
    assert stats.seconds is not None
    assert stats.waiting_seconds >= 0.06
    assert stats.seconds > 0.04
    assert stats.compression_seconds > 0
