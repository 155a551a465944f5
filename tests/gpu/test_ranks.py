"""Interpreted kernels under a pipeline: the averages, states and checkpoints of ranks on the host."""

from __future__ import annotations

import pytest

from gpu.conftest import Mutate
from gpu.processes import run


def test_ranks_on_a_device_average_with_ranks_on_the_host() -> None:
    done = run("ranks.py")
    assert done.returncode == 0, done.stdout + done.stderr
    # All tensors but the one whose codec has no kernels.
    assert done.stdout == (
        "12 steps compared, 8 tensors on a device\n"
        "30 steps compared, from device to device\n"
        "13 steps compared, of a reduce-scatter\n"
        "9 sums compared, from device to device\n"
        "18 steps compared, of gradients of 16 bits\n"
        "16 steps compared, of gradients that stay where they are\n"
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("begun=item.begun", "begun=False", "sums differ in step 0"),
        ("foreach_zero_(residuals)", "pass", "residuals differ in step 0"),
        ("given == self._given", "self._given", "averages differ in step 1"),
        ("receiver.given != given", "False", "averages differ in step 1"),
    ],
)
def test_other_sums_are_refused(mutant: Mutate, before: str, after: str, fault: str) -> None:
    done = run("ranks.py", first=mutant(before, after))
    assert done.returncode == 1, done.stdout
    assert fault in done.stderr
