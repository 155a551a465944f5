"""Compression of FSDP2, in the reduce-scatter and between machines; see the cases."""

from __future__ import annotations

import pytest
from launch import CaseJob
from workers import fsdp, fsdp_between, fsdp_features


@pytest.mark.parametrize("case", fsdp.cases)
def test_fsdp(torchrun2: CaseJob, case: str) -> None:
    torchrun2.check(case)


@pytest.mark.parametrize("case", fsdp_features.cases)
def test_features(ddp2: CaseJob, case: str) -> None:
    ddp2.check(case)


@pytest.mark.parametrize("case", fsdp_between.cases)
def test_between_machines(ddp2: CaseJob, case: str) -> None:
    ddp2.check(case)


@pytest.mark.parametrize("case", [*fsdp.four, *fsdp_between.four])
def test_fsdp_on_four_ranks(ddp4: CaseJob, case: str) -> None:
    ddp4.check(case)
