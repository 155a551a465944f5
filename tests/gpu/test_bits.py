"""Kernels in Triton's interpreter make the bytes, residuals and momenta of the C++ core."""

from __future__ import annotations

import re

import pytest

from gpu.processes import interpret

GROUPS = (
    *("topk", "topk_state", "sampled_topk", "half", "quantized"),
    *("signs", "ternary", "rotated", "randomk", "added", "peer", "bases", "matrices"),
)
LEAST = dict.fromkeys(GROUPS, 1000) | {"topk_state": 60}


@pytest.mark.parametrize("group", GROUPS)
def test_all_bits_are_those_of_the_core(group: str) -> None:
    done = interpret(group)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(rf"^{group}: (\d+) cases, 0 differences", done.stdout, re.M)
    assert counted is not None, done.stdout
    assert int(counted[1]) >= LEAST[group]
