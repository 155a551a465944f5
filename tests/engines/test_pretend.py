"""Gradients on a device without kernels, in Horovod and DDP: two ranks with a pretended device."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import CaseJob, cases_in, run_cases


@pytest.fixture(scope="module")
def pretend2(tmp_path_factory: pytest.TempPathFactory) -> CaseJob:
    """A job of its own: the device is the accelerator of its processes."""
    folder: Path = tmp_path_factory.mktemp("pretend2")
    return run_cases(["pretend"], 2, "gloo", folder, tmp_path_factory.mktemp("pretend_shared"))


@pytest.mark.parametrize("case", cases_in("pretend"))
def test_gradients_through_the_host(pretend2: CaseJob, case: str) -> None:
    pretend2.check(case)
