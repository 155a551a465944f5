"""Elastic jobs of real Horovod: the way of a job, and the laws that hold in each of its steps."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

import pytest

from elastic_job import ElasticJob, Row

Life = dict[int, dict[int, Row]]
"""The rows of a life, by step and rank."""


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
    sizes = [next(iter(complete(life).values()))[0]["size"] for life in lives]
    assert sizes[0] == 2
    assert {1, 3} <= set(sizes)
    assert sizes[-1] == 2
    check_replicas(lives)
    check_steps(lives)
    assert check_resets(lives) >= 3
    return lives


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


def end_after(last: Path, step: int) -> None:
    """Write the number of the last step, which workers read at any time."""
    new = last.with_suffix(".new")
    new.write_text(str(step))
    new.replace(last)


def lives_of(rows: list[Row]) -> list[Life]:
    """The rows of each life, by step and rank, in the order of lives."""
    lives: dict[float, Life] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        lives[row["life"]][row["step"]][row["rank"]] = row
    return [lives[life] for life in sorted(lives)]


def complete(life: Life) -> dict[int, list[Row]]:
    """The steps that all ranks of a life have made."""
    return {
        step: [of_ranks[rank] for rank in sorted(of_ranks)]
        for step, of_ranks in sorted(life.items())
        if len(of_ranks) == of_ranks[min(of_ranks)]["size"]
    }


def check_replicas(lives: list[Life]) -> None:
    """Equal parameters on all ranks after each step."""
    for life in lives:
        for step, rows in complete(life).items():
            assert len({row["digest"] for row in rows}) == 1, step


def check_steps(lives: list[Life]) -> None:
    """Applied and unsent changes are all changes."""
    for life in lives:
        for step, rows in complete(life).items():
            owed = [row["given"] + row["before"] - row["after"] for row in rows]
            assert rows[0]["applied"] == pytest.approx(sum(owed) / len(owed), abs=2e-3), step


def check_resets(lives: list[Life]) -> int:
    """Survivors' residuals count as before; returns the number of resets."""
    checked = 0
    for old, new in itertools.pairwise(lives):
        first = complete(new)[min(complete(new))]
        stayed = {row["pid"] for row in first}
        # The step before: at a failure the last one that was committed, perhaps by survivors only.
        before = old.get(first[0]["step"] - 1, {}).values()
        survivors = [row for row in before if row["pid"] in stayed]
        if not survivors:
            continue
        kept = sum(row["after"] for row in survivors) / survivors[0]["size"]
        assert sum(row["before"] for row in first) / len(first) == pytest.approx(kept, abs=2e-3)
        checked += 1
    return checked
