"""Jobs with seeded faults end, name the cause and leave nothing behind (benchmarks/chaos)."""

from __future__ import annotations

import json
from pathlib import Path

from launch import ROOT, run

from support.scope import by_scope

TRIALS = by_scope(4, 12)
"""The first four have each fault once, and each engine; twelve have each fault with each engine."""

FAULTS = "kill,late,config,frame"


def test_every_trial_names_its_cause(tmp_path: Path) -> None:
    command = [ROOT / "benchmarks" / "chaos", "--trials", TRIALS, "--faults", FAULTS]
    job = run([*command, "--output", tmp_path])
    assert job.status == 0, job.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert len(found["trials"]) == TRIALS
    assert {trial["plan"]["engine"] for trial in found["trials"]} == {"horovod", "ddp", "byteps"}
    assert not any(trial["files"] for trial in found["trials"])
    assert "| kill | horovod |" in (tmp_path / "results.md").read_text()


def test_refuses_unknown_names(tmp_path: Path) -> None:
    job = run([ROOT / "benchmarks" / "chaos", "--faults", "fire", "--output", tmp_path])
    assert job.status == 2
    assert "got 'fire'; there are kill, stop" in job.output.replace("\n", " ")
