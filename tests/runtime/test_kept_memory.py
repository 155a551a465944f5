"""Memory of large arrays is used again, but never while anything refers to it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from gradcomp import Pipeline
from gradcomp.codec.arrays import room
from gradcomp.runtime.loopback import run_rounds

LARGE = 1 << 20
"""Elements; the C library itself keeps the memory of small arrays."""


@pytest.mark.parametrize("numel", [0, 1, 15, 16, 17, 1000, LARGE, LARGE + 1, 3 * LARGE])
def test_a_room_is_aligned_and_writable(numel: int) -> None:
    one = room(numel)
    assert one.shape == (numel,)
    assert one.dtype == np.float32
    assert one.ctypes.data % 64 == 0
    one[:] = 1.0


def test_a_room_is_used_again_when_nothing_refers_to_it() -> None:
    first = room(LARGE)
    address = first.ctypes.data
    view = first.reshape(-1, 64)[2:]
    del first
    second = room(LARGE)
    assert second.ctypes.data != address
    del view
    assert room(LARGE).ctypes.data == address


def test_arrays_of_about_the_same_size_get_the_same_memory() -> None:
    address = room(LARGE + LARGE // 20).ctypes.data
    assert room(LARGE + LARGE // 25).ctypes.data == address


def test_free_memory_is_given_back_for_arrays_of_other_sizes() -> None:
    # In a process of its own: memory may be kept up to the most that a process has used at once.
    program = """
        from pathlib import Path
        from gradcomp.codec.arrays import room

        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

        before = resident()
        for numel in range(1 << 20, 1 << 24, 1 << 20):  # 480 MiB, one after the other
            room(numel)[:] = 1.0
        print(resident() - before)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 << 20


@pytest.mark.parametrize("spec", ["topk(ratio=0.5)", "fp16", "int8"])
def test_averages_that_are_kept_do_not_change(spec: str) -> None:
    pipelines = [Pipeline(spec, rank, 2) for rank in range(2)]
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(3):
        grads = [{"w": rng.standard_normal((512, 2048), np.float32)} for _ in pipelines]
        rounds = [one.bucket_round("w", grad) for one, grad in zip(pipelines, grads, strict=True)]
        average = run_rounds(rounds)[0][0]
        kept.append((average, average.copy()))
    for average, copy in kept:
        assert average.tobytes() == copy.tobytes()


@pytest.mark.parametrize("spec", ["topk(ratio=0.5)", "fp16", "int8", "identity"])
def test_averages_overwrite_gradients_only_where_they_may(spec: str) -> None:
    pipelines = [Pipeline(spec, rank, 2) for rank in range(2)]
    grads = [np.full((64, 80), rank, np.float32) for rank in range(2)]
    rounds = [one.bucket_round("w", {"w": x}) for one, x in zip(pipelines, grads, strict=True)]
    ((kept,), _) = run_rounds(rounds)
    assert [float(grad.min()) for grad in grads] == [0.0, 1.0]
    rounds = [
        one.bucket_round("w", {"w": x}, overwrite=True)
        for one, x in zip(pipelines, grads, strict=True)
    ]
    ((average,), _) = run_rounds(rounds)
    assert average.tobytes() == kept.tobytes()
    if spec != "identity":  # the engine's own average
        assert np.shares_memory(average, grads[0])
