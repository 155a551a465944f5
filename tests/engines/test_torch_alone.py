"""Jobs of torchrun where PyTorch is the only engine: DDP, outer steps and FSDP. A part of ``scripts/test quick``."""

from __future__ import annotations

import pytest
from launch import CaseJob
from workers import torch_alone


@pytest.mark.parametrize("case", torch_alone.cases)
def test_a_case(torchrun2: CaseJob, case: str) -> None:
    torchrun2.check(case)
