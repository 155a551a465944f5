"""Compression of FSDP2, in the reduce-scatter and between machines; see the cases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launch import HERE, CaseJob, run
from workers import fsdp, fsdp_between, fsdp_features


@pytest.mark.parametrize("case", fsdp.cases)
def test_fsdp(ddp2: CaseJob, case: str) -> None:
    ddp2.check(case)


@pytest.mark.parametrize("case", fsdp_features.cases)
def test_features(ddp2: CaseJob, case: str) -> None:
    ddp2.check(case)


@pytest.mark.parametrize("case", fsdp_between.cases)
def test_between_machines(ddp2: CaseJob, case: str) -> None:
    ddp2.check(case)


@pytest.mark.parametrize("case", [*fsdp.four, *fsdp_between.four])
def test_fsdp_on_four_ranks(ddp4: CaseJob, case: str) -> None:
    ddp4.check(case)


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    root = HERE.parents[1]
    page = (root / "docs" / "fsdp.md").read_text()
    example = tmp_path / "example.py"
    example.write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    job = run([example], 2, "torchrun", {"PYTHONPATH": str(root)}, limit=120)
    assert job.status == 0, job.output
    assert re.search(r"[1-9]\d*\.\d times fewer bytes", job.output), job.output
