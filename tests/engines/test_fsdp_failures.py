"""A rank of FSDP2 that ends or stops ends the job, and the others name it."""

from __future__ import annotations

import re

import pytest
from launch import run


@pytest.mark.parametrize("spec", ["fp16", "residual|topk(ratio=0.01)"])
@pytest.mark.parametrize("way", ["kill", "raise", "stop"])
def test_every_rank_names_the_lost_one(way: str, spec: str) -> None:
    """Exchanges under way end the backward passes of all others."""
    job = run(["-m", "workers.fsdp_lost", way, spec], 3, "torchrun", limit=240)
    assert job.status != 0, job.output
    named = re.findall(r"ProtocolError: (ranks? [\d, ]+ do(?:es)?) not answer in", job.output)
    assert named == ["rank 1 does"] * 2, job.output
