"""Checkpoints of compressors on real Horovod; see the cases."""

from __future__ import annotations

import pytest
from launch import CaseJob
from workers import states


@pytest.mark.parametrize("case", states.save)
def test_save(gloo2: CaseJob, case: str) -> None:
    gloo2.check(case)


@pytest.mark.parametrize("case", states.resume)
def test_resume(mpi2: CaseJob, case: str) -> None:
    mpi2.check(case)


@pytest.mark.parametrize("case", states.rescale)
def test_resume_at_another_world_size(gloo3: CaseJob, case: str) -> None:
    gloo3.check(case)
