"""Our communication hook where others wrap, copy and save the model; see the cases."""

from __future__ import annotations

import pytest
from launch import CaseJob
from workers import trainers


@pytest.mark.parametrize("case", trainers.cases)
def test_trainers(ddp2: CaseJob, case: str) -> None:
    ddp2.check(case)


@pytest.mark.parametrize("case", trainers.three)
def test_trainers_on_three_ranks(ddp3: CaseJob, case: str) -> None:
    ddp3.check(case)
