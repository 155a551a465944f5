"""Wrong kernels differ from the core in the comparisons of test_bits.py: its inputs are strong enough."""

from __future__ import annotations

import re

import pytest

from gpu.conftest import Mutate
from gpu.kernel_mutants import GUARDED, MUTANTS
from gpu.processes import DEFAULT_SHARE, interpret

CASES = [pytest.param(name, marks=() if name in GUARDED else pytest.mark.full) for name in MUTANTS]


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_kernel_is_refused(name: str, mutant: Mutate) -> None:
    """With the numbers of the default run of test_bits.py."""
    launch, before, after = MUTANTS[name]
    done = interpret(launch, share=DEFAULT_SHARE, first=mutant(before, after))
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(" differs| uses memory beyond ", done.stdout), done.stdout + done.stderr
