"""Wrong kernels differ from the core in the comparisons of test_bits.py: its inputs are strong enough."""

from __future__ import annotations

import re

import pytest

from gpu.conftest import Mutate
from gpu.kernel_mutants import GUARDED, MUTANTS
from gpu.processes import DEFAULT_SHARE, ROOT, interpret

CASES = [pytest.param(name, marks=() if name in GUARDED else pytest.mark.full) for name in MUTANTS]


def test_each_change_is_of_this_code() -> None:
    code = "".join(path.read_text() for path in (ROOT / "gradcomp_torch" / "gpu").rglob("*.py"))
    assert [name for name, (_, before, _) in MUTANTS.items() if before not in code] == []


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_kernel_is_refused(name: str, mutant: Mutate) -> None:
    """With the numbers of the default run of test_bits.py."""
    launch, before, after = MUTANTS[name]
    done = interpret(launch, share=DEFAULT_SHARE, first=mutant(before, after))
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(" differs| uses memory beyond ", done.stdout), done.stdout + done.stderr
