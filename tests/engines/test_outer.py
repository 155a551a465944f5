"""Training with outer steps on torch.distributed and Horovod."""

from __future__ import annotations

import pytest
from launch import CaseJob
from workers import outer


@pytest.mark.parametrize("case", outer.cases)
def test_outer(torchrun2: CaseJob, case: str) -> None:
    torchrun2.check(case)


@pytest.mark.parametrize("case", outer.with_horovod)
def test_with_horovod(ddp2_horovod: CaseJob, case: str) -> None:
    ddp2_horovod.check(case)


@pytest.mark.parametrize("case", outer.four)
def test_outer_on_four_ranks(ddp4: CaseJob, case: str) -> None:
    ddp4.check(case)
