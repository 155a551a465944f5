"""BytePS jobs of workers that are not equal: each ends, and its workers tell the difference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_byteps import run

RANDOM = "residual|randomk(ratio=0.1)"


def fail(folder: Path, ways: str, spec: str = RANDOM) -> list[str]:
    """Run a job that must fail; returns the workers' logs."""
    done = run(folder, 2, 1, "-m", "workers.byteps_apart", ways, spec)
    assert done.returncode == 1, done.stdout + done.stderr
    logs = [(folder / f"logs/worker-{rank}.log").read_text() for rank in range(2)]
    for log in logs:
        for way in ways.split(","):
            assert (f"{way}: equal so far" in log) is (way not in ("dtype", "version")), log
        assert "trained on" not in log
    return logs


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Logs of workers that find their differences when they compare themselves."""
    return fail(tmp_path_factory.mktemp("compared"), "load,drift,dtype,version")


def test_states_of_different_steps_are_refused_by_all_workers(compared: list[str]) -> None:
    for log in compared:
        assert "ProtocolError: the workers loaded states of different steps" in log
        assert "steps of 'load.0.weight': 7 on worker 0; 3 on worker 1" in log


def test_other_dtypes_are_refused_by_all_workers(compared: list[str]) -> None:
    for log in compared:
        assert re.search(r"parameters: 4 of float32, digest .* on worker 0; 4 of float64", log), log


TOPK = "residual|topk(ratio=0.01)"
EPOCHS = ["step 6, epoch 1", "step 6, epoch 0"]
STEPS = ["step 6, epoch 0", "step 3, epoch 0"]


@pytest.mark.parametrize(
    ("way", "points", "spec"),
    [
        ("epoch", EPOCHS, TOPK),
        pytest.param("epoch", EPOCHS, RANDOM, marks=pytest.mark.full),
        pytest.param("step", STEPS, RANDOM, marks=pytest.mark.full),
        pytest.param("step", STEPS, TOPK, marks=pytest.mark.full),
    ],
)
def test_the_first_message_at_another_point_ends_the_job(
    tmp_path: Path, spec: str, way: str, points: list[str]
) -> None:
    logs = fail(tmp_path, way, spec)
    for rank, log in enumerate(logs):
        assert "ProtocolError: the workers are not at the same point of the training" in log
        assert f"this is worker {rank}, at {points[rank]}" in log
        if spec != RANDOM:  # messages name their workers
            for other, point in enumerate(points):
                assert f"worker {other} is at {point}" in log


def test_workers_of_different_loss_scales_end_the_job(tmp_path: Path) -> None:
    for log in fail(tmp_path, "scale"):
        assert "epoch 0, with different learning rates or loss scales; this is worker" in log


def test_another_version_is_refused_by_all_workers(compared: list[str]) -> None:
    for log in compared:
        assert "gradcomp 9.9, wire format 1 on worker 1" in log


def test_models_that_drift_apart_are_named(compared: list[str]) -> None:
    for log in compared:
        assert "1 of 4 parameters differ after step 9, first 'drift.1.weight'" in log


def test_a_comparison_does_not_wait_for_ever(tmp_path: Path) -> None:
    log, _ = fail(tmp_path, "absent")
    assert "worker 0 waited 3 s (GRADCOMP_BYTEPS_TIMEOUT) for the others" in log
