"""DDP and FSDP where PyTorch is the only engine, in a job of torchrun: a part of ``scripts/test quick``."""

from __future__ import annotations

import pytest
from launch import CaseJob, run_cases
from workers import torch_alone


@pytest.fixture(scope="module")
def torchrun2(tmp_path_factory: pytest.TempPathFactory) -> CaseJob:
    """Two ranks of torchrun."""
    folder, shared = (tmp_path_factory.mktemp(name) for name in ("torchrun2", "shared-torchrun2"))
    harness = ["-m", "workers.torch_alone"]
    return run_cases(["torch_alone"], 2, "torchrun", folder, shared, harness)


@pytest.mark.parametrize("case", torch_alone.cases)
def test_ddp_and_fsdp(torchrun2: CaseJob, case: str) -> None:
    torchrun2.check(case)
