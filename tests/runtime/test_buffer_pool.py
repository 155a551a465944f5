"""Memory of averages is used again, but never while anything refers to it."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import Pipeline, _core
from gradcomp.runtime.loopback import run_rounds


@pytest.mark.parametrize("numel", [0, 1, 15, 16, 17, 1000])
def test_a_room_is_aligned_and_writable(numel: int) -> None:
    room = _core.BufferPool().get(numel)
    assert room.shape == (numel,)
    assert room.dtype == np.float32
    assert room.ctypes.data % 64 == 0
    room[:] = 1.0  # the pool is gone already


def test_a_room_is_used_again_when_nothing_refers_to_it() -> None:
    rooms = _core.BufferPool()
    first = rooms.get(1000)
    address = first.ctypes.data
    view = first.reshape(10, 100)[2:]
    del first
    second = rooms.get(1000)
    assert second.ctypes.data != address
    del view
    assert rooms.get(1000).ctypes.data == address


def test_averages_that_are_kept_do_not_change() -> None:
    pipelines = [Pipeline("topk(ratio=0.5)", rank, 2) for rank in range(2)]
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(3):
        grads = [{"w": rng.standard_normal((64, 80), np.float32)} for _ in pipelines]
        rounds = [one.bucket_round("w", grad) for one, grad in zip(pipelines, grads, strict=True)]
        average = run_rounds(rounds)[0][0]
        kept.append((average, average.copy()))
    for average, copy in kept:
        assert average.tobytes() == copy.tobytes()
