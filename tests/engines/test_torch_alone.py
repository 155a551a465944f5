"""DDP and FSDP where PyTorch is the only engine, in a job of torchrun: a part of ``scripts/test quick``."""

from __future__ import annotations

import pytest
from launch import CaseJob
from workers import torch_alone


@pytest.mark.parametrize("case", torch_alone.cases)
def test_ddp_and_fsdp(torchrun2: CaseJob, case: str) -> None:
    torchrun2.check(case)
