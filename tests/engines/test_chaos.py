"""Jobs with seeded faults end, name the cause and leave nothing behind (benchmarks/chaos)."""

from __future__ import annotations

import json
from pathlib import Path

from launch import ROOT, run

from support.scope import FULL

# Tests of each engine have faults of their own; by default a trial shows that the program works.
TRIALS, ENGINES, FAULTS = 1, ("ddp",), "kill"
if FULL:
    TRIALS, ENGINES, FAULTS = 12, ("horovod", "ddp", "byteps"), "kill,late,config,frame"


def test_every_trial_names_its_cause(tmp_path: Path) -> None:
    command = [ROOT / "benchmarks" / "chaos", "--trials", TRIALS, "--faults", FAULTS]
    job = run([*command, "--engines", ",".join(ENGINES), "--output", tmp_path])
    assert job.status == 0, job.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert len(found["trials"]) == TRIALS
    assert {trial["plan"]["engine"] for trial in found["trials"]} == set(ENGINES)
    assert not any(trial["files"] for trial in found["trials"])
    assert f"| kill | {ENGINES[0]} |" in (tmp_path / "results.md").read_text()


def test_refuses_unknown_names(tmp_path: Path) -> None:
    job = run([ROOT / "benchmarks" / "chaos", "--faults", "fire", "--output", tmp_path])
    assert job.status == 2
    assert "got 'fire'; there are kill, stop" in job.output.replace("\n", " ")
