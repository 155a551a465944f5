"""Statistics of a rank."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import Loopback
from gradcomp.runtime.measure.stats import RECENT


def test_the_recent_ratio_forgets_a_warm_up() -> None:
    job = Loopback("powersgd(rank=1,start_step=8)", 2)
    stats = job.stats[0]
    assert stats.recent_ratio == stats.ratio == 1
    rng = np.random.default_rng(0)
    for step in range(8 + RECENT + 2):
        job.step({"w": [rng.standard_normal((100, 100), np.float32)] * 2})
        if step == 7:
            assert stats.recent_ratio == pytest.approx(1, rel=0.1)
            assert stats.recent_ratio == stats.ratio
    assert stats.recent_ratio > 45
    assert stats.ratio < 5
