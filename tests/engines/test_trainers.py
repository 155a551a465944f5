"""Our communication hook where others wrap, copy and save the model, and in trainers; see the cases."""

from __future__ import annotations

import os

import pytest
from launch import PATHS, ROOT, CaseJob, cases_in, read_reports, run
from workers import trainers


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> CaseJob:
    """The examples of trainers on two ranks of torchrun."""
    reports, shared = (tmp_path_factory.mktemp(name) for name in ("reports", "shared"))
    paths = os.pathsep.join(map(str, [*PATHS, ROOT, ROOT / "examples"]))
    command = ["-m", "workers.trainer_jobs", reports, shared]
    return CaseJob(run(command, 2, "torchrun", {"PYTHONPATH": paths}), read_reports(reports, 2))


@pytest.mark.parametrize("case", cases_in("trainer_jobs"))
def test_examples(examples: CaseJob, case: str) -> None:
    examples.check(case)


@pytest.mark.parametrize("case", trainers.cases)
def test_trainers(ddp2: CaseJob, case: str) -> None:
    ddp2.check(case)


@pytest.mark.parametrize("case", trainers.with_horovod)
def test_with_horovod(ddp2_horovod: CaseJob, case: str) -> None:
    ddp2_horovod.check(case)


@pytest.mark.parametrize("case", trainers.three)
def test_trainers_on_three_ranks(ddp3: CaseJob, case: str) -> None:
    ddp3.check(case)
