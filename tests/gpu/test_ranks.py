"""Interpreted kernels under a pipeline: the averages, states and checkpoints of ranks on the host."""

from __future__ import annotations

import pytest

from gpu.conftest import Mutate
from gpu.processes import run


def test_ranks_on_a_device_average_with_ranks_on_the_host() -> None:
    done = run("ranks.py")
    assert done.returncode == 0, done.stdout + done.stderr
    # All tensors but the one whose codec has no kernels.
    direct = "24 steps compared, from device to device\n9 sums compared, from device to device\n"
    mixed_precision = "84 steps compared, of mixed precision\n"
    assert done.stdout == f"12 steps compared, 8 tensors on a device\n{mixed_precision}{direct}"


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("0x7FFFFFFF) >= 0x7F800000", "0x7FFFFFFF) > 0x7F800000", "ACTUAL"),
        ("(kernels.find_nonfinite_kernel, kernels.poison_kernel)", "()", "ACTUAL"),
        ("torch._foreach_copy_(copies, sources)", "pass", "states differ before step 4"),
        ("torch._foreach_mul_(tensors, factor)", "pass", "states differ before step 2"),
    ],
)
def test_wrong_steps_of_mixed_precision_are_refused(
    mutant: Mutate, before: str, after: str, fault: str
) -> None:
    done = run("ranks.py", first=mutant(before, after))
    assert done.returncode == 1, done.stdout
    assert fault in done.stderr
