"""A rank of DDP that ends, stops or comes late ends the job, and the others name it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from launch import run

from support.scope import FULL

TOPK = "residual|topk(ratio=0.01)"

ENDING = ["raise", "gone"]
LOST = ["stop fp16 2", f"kill {TOPK} 0"]  # in all-reduces, and in exchanges of frames
LATE = {
    "init_process_group": "rank 1 does not arrive in init_process_group within 5 s",
    "ddp_hook": "rank 1 does not call ddp_hook",
}
if FULL:
    ENDING += ["kill"]
    LOST += [f"stop {TOPK} 2", "kill fp16 0", "kill fp16 2", f"kill {TOPK} 2"]


def run_lost(folder: Path, jobs: Sequence[str]) -> dict[str, str]:
    """What the ranks of some jobs of `workers.lost` print."""
    done = run(["-m", "workers.lost", folder, *jobs])
    assert done.status == 0, done.output
    return {job: (folder / job).read_text() for job in jobs}


def check_lost(output: str, lost: int) -> None:
    """All three ranks but the lost one have ended with its name."""
    named = re.findall(r"ProtocolError: (ranks? [\d, ]+ do(?:es)?) not answer in", output)
    assert named == [f"rank {lost} does"] * 2, output


def check_end(output: str) -> None:
    """The other one of two ranks does not wait: its error names the lost rank and the request."""
    assert output.count("the end of rank 1") == 1, output
    assert re.search(r"ProtocolError: (rank 1|another rank) does not answer", output), output


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    jobs = [f"2 ddp_dying {way}" for way in ENDING]
    jobs += [f"3 ddp_lost {lost}" for lost in LOST]
    jobs += [f"3 torch_late 1 {function}" for function in LATE]
    return run_lost(tmp_path_factory.mktemp("lost"), jobs)


@pytest.mark.parametrize("way", ENDING)
def test_rank_that_ends(printed: dict[str, str], way: str) -> None:
    check_end(printed[f"2 ddp_dying {way}"])


@pytest.mark.parametrize("lost", LOST)
def test_every_rank_names_the_lost_one(printed: dict[str, str], lost: str) -> None:
    check_lost(printed[f"3 ddp_lost {lost}"], int(lost[-1]))


@pytest.mark.parametrize("function", LATE)
def test_a_late_rank_is_named(printed: dict[str, str], function: str) -> None:
    for rank in (0, 2):
        assert f"rank {rank} reports: {LATE[function]}" in printed[f"3 torch_late 1 {function}"]


@pytest.mark.parametrize(
    "way", ["kill", *(pytest.param(way, marks=pytest.mark.full) for way in ("raise", "gone"))]
)
def test_torchrun_ends_the_job(way: str) -> None:
    job = run(["-m", "workers.ddp_dying", way], 2, "torchrun", limit=120)
    assert job.status != 0, job.output
    check_end(job.output)


@pytest.mark.full
@pytest.mark.parametrize("lost", LOST)
def test_torchrun_lets_ranks_name_the_lost_one(lost: str) -> None:
    job = run(["-m", "workers.ddp_lost", *lost.split(" ")], 3, "torchrun", limit=240)
    assert job.status != 0, job.output
    check_lost(job.output, int(lost[-1]))


@pytest.mark.full
@pytest.mark.parametrize("function", LATE)
def test_a_late_rank_of_torchrun_is_named(function: str) -> None:
    job = run(["-m", "workers.torch_late", "1", function], 3, "torchrun", limit=120)
    for rank in (0, 2):
        assert f"rank {rank} reports: {LATE[function]}" in job.output
