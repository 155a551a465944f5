"""Elastic jobs of real Horovod: the way of a job, after which all laws hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elastic.job import ElasticJob, end_after
from elastic.laws import (
    Life,
    check_replicas,
    check_resets,
    check_steps,
    complete,
    lives_of,
    sizes_of,
)


def ranks_come_go_and_die(job: ElasticJob, last: Path) -> list[Life]:
    """A worker is killed, its host comes back, a slot comes and goes; then all laws are checked.

    Args:
        last: the file with the number of the last step.
    """
    job.wait_for_size(2)
    job.kill(rank=1, size=2)
    job.wait_for_size(1)
    job.wait_for_size(2)  # the host is back
    job.set_hosts({"localhost": 2, "127.0.0.1": 1})
    job.wait_for_size(3)
    job.set_hosts({"localhost": 1, "127.0.0.1": 1})
    row = job.wait_for_size(2)
    end_after(last, row["step"] + 5)
    job.end()
    lives = lives_of(job.rows())
    sizes = sizes_of(lives)
    assert sizes[0] == 2
    assert {1, 3} <= set(sizes)
    assert sizes[-1] == 2
    check_replicas(lives)
    check_steps(lives)
    assert check_resets(lives) >= 3
    return lives


def check_estimates(lives: list[Life]) -> None:
    """The mean of all ranks' estimates is the one that each rank keeps, after every step."""
    checked = 0
    for life in lives:
        for step, rows in complete(life).items():
            own, means = np.transpose([row["estimates"] for row in rows])
            assert len(set(means)) == 1, f"ranks differ after step {step}"
            assert abs(own.mean() - means[0]) < 1e-3, f"step {step}: {own} and {means}"
            checked += len(rows) > 1 and len(set(own)) > 1
    assert checked > 5


def rank_0_dies(job: ElasticJob, last: Path) -> list[Life]:
    """Rank 0 is killed, and its host comes back.

    Args:
        last: the file with the number of the last step.
    """
    job.wait_for_size(2)
    job.kill(rank=0, size=2)
    job.wait_for_size(1)
    row = job.wait_for_size(2)
    end_after(last, row["step"] + 5)
    job.end()
    return lives_of(job.rows())
