"""Jobs that save, lose a rank, and resume from the newest complete checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from launch import Finished, run
from test_byteps import run as run_byteps

from support.scope import FULL

LAUNCHERS = {"horovod": "gloo", "ddp": "torchrun"}
STEPS = 20


def train(engine: str, folder: Path, ranks: int, kill: int = 0) -> Finished:
    folder.mkdir(exist_ok=True)
    command = ["-m", "workers.checkpoints", engine, folder, str(STEPS), str(kill)]
    if engine == "byteps":
        done = run_byteps(folder, ranks, 1, *command)
        return Finished(done.returncode, done.stdout + done.stderr, 0.0)
    return run(command, ranks, LAUNCHERS[engine], limit=180)


def ends(folder: Path, ranks: int) -> list[Any]:
    return [torch.load(folder / f"end-{rank}.pt", weights_only=True) for rank in range(ranks)]


def check_same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("engine", [*LAUNCHERS, "byteps"])
def test_resume_after_the_loss_of_a_rank(engine: str, tmp_path: Path) -> None:
    straight, lost = tmp_path / "straight", tmp_path / "lost"
    done = train(engine, straight, 2)
    assert done.status == 0, done.output
    killed = train(engine, lost, 2, kill=13)
    assert killed.status != 0, killed.output
    # Incomplete, as if the job had been killed while it saved step 15.
    newest = lost / "state" / f"step-{15:012d}"
    newest.mkdir()
    (newest / "rank-00000-0123456789abcdef.state").write_bytes(b"gradcomp")
    three = tmp_path / "three"
    shutil.copytree(lost, three)

    resumed = train(engine, lost, 2)
    assert resumed.status == 0, resumed.output
    assert "begins with step 10" in resumed.output
    for one, other in zip(ends(lost, 2), ends(straight, 2), strict=True):
        check_same(one["model"], other["model"])
        for kind in ("rounds", "specs"):
            assert one["state"][kind] == other["state"][kind]
        check_same(one["state"]["residual"], other["state"]["residual"])

    if engine != "horovod" and not FULL:
        return  # what three ranks do with the states of two does not depend on the engine
    more = train(engine, three, 3)
    assert more.status == 0, more.output
    assert "begins with step 10" in more.output
    first, *others = ends(three, 3)
    for other in others:
        check_same(first["model"], other["model"])
