"""Kernels in Triton's interpreter make the bytes, residuals and momenta of the C++ core."""

from __future__ import annotations

import re
import subprocess

import pytest

from gpu.kernel_mutants import LAUNCHES
from gpu.processes import DEFAULT_SHARE, interpret
from support.scope import FULL, by_scope

GROUPS = (
    *("topk", "topk_state", "sampled_topk", "half", "sixteen", "quantized"),
    *("signs", "ternary", "rotated", "randomk", "added", "peer", "bases", "matrices"),
)
LEAST = dict.fromkeys(GROUPS, by_scope(50, 1000)) | {"topk_state": by_scope(30, 60)}


@pytest.mark.parametrize("group", GROUPS)
def test_all_bits_are_those_of_the_core(group: str) -> None:
    done = interpret(group, share=1.0 if FULL else DEFAULT_SHARE)
    assert _cases(done)[group] >= LEAST[group]


def test_launches_with_strong_inputs() -> None:
    """Those that show the mutants of test_mutants.py."""
    cases = _cases(interpret(*LAUNCHES))
    assert cases.keys() == {*LAUNCHES}
    assert min(cases.values()) >= 30


def _cases(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """How many cases were compared, by name; none may differ."""
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.findall(r"^(.+): (\d+) cases, 0 differences$", done.stdout, re.M)
    return {name: int(count) for name, count in counted}
