"""A rank of DDP that ends, stops or comes late ends the job, and the others name it."""

from __future__ import annotations

import re

import pytest
from launch import run


@pytest.mark.parametrize("way", ["kill", "raise", "gone"])
def test_rank_that_ends(way: str) -> None:
    """The other rank does not wait: its error names the lost rank and the request."""
    job = run(["-m", "workers.ddp_dying", way], 2, "torchrun", limit=120)
    assert job.output.count("the end of rank 1") == 1, job.output
    assert job.status != 0, job.output
    assert re.search(r"ProtocolError: (rank 1|another rank) does not answer", job.output), (
        job.output
    )


@pytest.mark.parametrize("spec", ["fp16", "residual|topk(ratio=0.01)"])
@pytest.mark.parametrize(("way", "lost"), [("kill", 2), ("stop", 2), ("kill", 0)])
def test_every_rank_names_the_lost_one(way: str, lost: int, spec: str) -> None:
    """With three ranks, in all-reduces and in exchanges of frames."""
    job = run(["-m", "workers.ddp_lost", way, spec, str(lost)], 3, "torchrun", limit=240)
    assert job.status != 0, job.output
    named = re.findall(r"ProtocolError: (ranks? [\d, ]+ do(?:es)?) not answer in", job.output)
    assert named == [f"rank {lost} does"] * 2, job.output


@pytest.mark.parametrize(
    ("function", "report"),
    [
        ("init_process_group", "rank 1 does not arrive in init_process_group within 5 s"),
        ("ddp_hook", "rank 1 does not call ddp_hook"),
    ],
)
def test_a_late_rank_is_named(function: str, report: str) -> None:
    job = run(["-m", "workers.torch_late", "1", function], 3, "torchrun", limit=120)
    for rank in (0, 2):
        assert f"rank {rank} reports: {report}" in job.output
