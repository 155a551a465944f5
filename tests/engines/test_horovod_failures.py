"""A rank that ends, stops or comes late ends the job, which prints why and names the rank."""

from __future__ import annotations

import re

import pytest
from launch import run

RAISED = r"ArithmeticError: raised in the backward pass"


@pytest.mark.parametrize(
    ("launcher", "way", "why"),
    [
        ("gloo", "kill", r"Process 1 exit with status code 137"),
        pytest.param(
            "mpi", "kill", r"process rank 1 .* exited on signal 9", marks=pytest.mark.full
        ),
        pytest.param("gloo", "raise", rf"\[1\]<stderr>:{RAISED}", marks=pytest.mark.full),
        ("mpi", "raise", RAISED),
    ],
    ids=["gloo-kill", "mpi-kill", "gloo-raise", "mpi-raise"],
)
def test_rank_that_ends(launcher: str, way: str, why: str) -> None:
    job = run(["-m", "workers.dying", way], 2, launcher, limit=180)
    assert job.output.count("the end of rank 1") == 1, job.output
    assert job.status != 0, job.output
    assert re.search(why, job.output), job.output


WARNING = r"rank 1 does not answer for [23] s .* HOROVOD_STALL_CHECK_TIME_SECONDS is 2 s"
# Stock limits, shortened, and the messages that name the rank; of three ranks, rank 1 is lost.
LOST = {
    "stalled": (
        {"STALL_CHECK_TIME_SECONDS": "2", "STALL_SHUTDOWN_TIME_SECONDS": "4"},
        WARNING,
        r"PeerError: rank 1 does not answer for [4-9] s .*"
        r" set HOROVOD_STALL_SHUTDOWN_TIME_SECONDS above 4 s",
    ),
    "warned": ({"STALL_CHECK_TIME_SECONDS": "2"}, WARNING),
    "failed": (
        {"STALL_CHECK_DISABLE": "1"},
        r"HorovodInternalError[\s\S]*gradcomp: rank 1 does not answer \(stopped, or ended\)",
    ),
}


@pytest.mark.parametrize(
    "way", ["stalled", "failed", pytest.param("warned", marks=pytest.mark.full)]
)
def test_stopped_rank_is_named(way: str) -> None:
    limits, *messages = LOST[way]
    # Ranks that wait leave the processors to others.
    limits = {"GLOO_TIMEOUT_SECONDS": "10", "CYCLE_TIME": "5", **limits}
    environment = {f"HOROVOD_{name}": value for name, value in limits.items()}
    job = run(["-m", "workers.dying", "stop"], 3, "gloo", environment, limit=180)
    assert job.status != 0, job.output
    for message in messages:
        assert re.search(message, job.output), job.output
    assert not re.search(r"ranks? [02]\b.* not answer", job.output), job.output


def test_late_rank_is_named() -> None:
    environment = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"}
    job = run(["-m", "workers.dying", "late"], 3, "gloo", environment, limit=180)
    assert job.status != 0, job.output
    message = r"rank 1 does not answer: no call of hvd.init\(\) there for 4 s.*"
    assert job.output.count("does not answer") == 1, job.output  # of one rank is enough
    assert re.search(message + r"HOROVOD_GLOO_TIMEOUT_SECONDS \(5 s\)", job.output), job.output


def test_stopped_rank_is_named_in_tensorflow() -> None:
    environment = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "10"}
    job = run(["-m", "workers.tf_stopping"], 2, "gloo", environment, limit=180)
    assert job.status != 0, job.output
    assert "gradcomp: rank 1 does not answer (stopped, or ended)" in job.output, job.output
