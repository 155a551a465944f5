"""`sparse_allreduce` from device to device: the averages and states of ranks on the host, and damaged messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.conftest import Mutate
from gpu.processes import run
from support.scope import by_scope


def test_shares_of_devices_are_those_of_the_host() -> None:
    done = run("shares.py")
    assert done.returncode == 0, done.stdout + done.stderr
    steps = by_scope(4, 30)
    assert done.stdout == f"{steps} steps compared\n10 damaged messages noticed\n"


def test_processes_of_ddp_average_as_rounds_through_the_host(tmp_path: Path) -> None:
    done = run("shares_in_ddp.py", str(tmp_path / "store"))
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert ranks == [f"rank {rank}: 5 steps compared" for rank in range(2)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(block + turn) % ranks", "block % ranks"),
        ("_add(floats(row, RESIDUAL) + index, value, beyond & (owner != rank))", "pass"),
        ("tl.store(late + place, value, mask=beyond & (owner == rank))", "pass"),
        ("_add(floats(row, RESIDUAL) + i, x, own)", "pass"),
        ("ok & (magnitude(value) != 0)", "ok"),
        ("tl.where(spoils,", "tl.where(spoils & (slot < 0),"),
        ("fewest=0", "fewest=1"),
        ("self._words.zero_()", "pass"),
        ("tables[:, :, fields.MESSAGE.value] = numbers", "pass"),
    ],
)
def test_other_shares_are_refused(before: str, after: str, mutant: Mutate) -> None:
    done = run("shares.py", first=mutant(before, after))
    assert done.returncode != 0, done.stdout
