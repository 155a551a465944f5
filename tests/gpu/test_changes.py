"""Devices while a ratio changes with the epoch, and while a loss scale changes and all ranks skip a step."""

from __future__ import annotations

import pytest

from gpu.conftest import Mutate
from gpu.processes import run


def test_averages_and_states_are_those_of_the_host() -> None:
    done = run("changes.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "24 steps of schedules, 84 of mixed precision\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("if largest >= INF:", "if largest > INF:", "ACTUAL"),
        ("(kernels.find_nonfinite_kernel, kernels.poison_kernel)", "()", "ACTUAL"),
        ("foreach_copy_(copies, sources)", "pass", "states differ before step 4"),
        ("foreach_mul_(tensors, factor)", "pass", "states differ before step 2"),
        ("WeakValueDictionary()", "{}", "encoders of one bucket"),
        ("if name in self._of_step:", "if not name:", "encoders of one bucket"),
    ],
)
def test_other_steps_are_refused(mutant: Mutate, before: str, after: str, fault: str) -> None:
    done = run("changes.py", first=mutant(before, after))
    assert done.returncode == 1, done.stdout
    assert fault in done.stderr
