"""Measured speeds for tests of `gradcomp advise`, each pair measured once in a process of pytest."""

from __future__ import annotations

import functools

import pytest

from gradcomp.tools.advise import calibrate
from support.scope import by_scope

GATHERED = ("residual|topk(ratio=0.01)", "gather")
PASSES = by_scope(1, 3)
"""Measurements of each pair. More make times steadier, and no test looks at them."""


@functools.cache
def speeds_of(spec: str, exchange: str) -> calibrate.Speeds:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "_PASSES", PASSES)
        return calibrate.measure_speeds([(spec, exchange)])[0]
