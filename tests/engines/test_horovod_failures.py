"""A rank that ends in the middle of a step ends the job, which prints why."""

from __future__ import annotations

import re

import pytest
from launch import run

RAISED = r"ArithmeticError: raised in the backward pass"


@pytest.mark.parametrize(
    ("launcher", "way", "why"),
    [
        ("gloo", "kill", r"Process 1 exit with status code 137"),
        ("mpi", "kill", r"process rank 1 .* exited on signal 9"),
        ("gloo", "raise", rf"\[1\]<stderr>:{RAISED}"),
        ("mpi", "raise", RAISED),
    ],
    ids=["gloo-kill", "mpi-kill", "gloo-raise", "mpi-raise"],
)
def test_rank_that_ends(launcher: str, way: str, why: str) -> None:
    job = run(["-m", "workers.dying", way], 2, launcher, limit=180)
    assert job.output.count("the end of rank 1") == 1, job.output
    assert job.status != 0, job.output
    assert re.search(why, job.output), job.output
