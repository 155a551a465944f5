"""Compressions and gradients of the workers of elastic jobs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradcomp import Config
from support.pipelines import configured, rules_of

SPECS = {
    "top": "residual|topk(ratio=0.02)",
    "low": "powersgd(rank=2,start_step=2,variant=paper)",
    "some": "residual|randomk(ratio=0.1)",
    "polar": "residual|polar(rate=0.25)",
    "basis": "residual|adaptive(rate=0.5,preset=basis)",
    "differences": "ef21(momentum=0.5)|topk(ratio=0.02)",
}
DGC = "dgc(ratio=0.05,warmup_epochs=0)"
SHAPE = (72, 64)
PAUSE = 0.03


def config() -> Config:
    return configured("identity", rules=rules_of(SPECS, "*{}"))


def gradient(step: int, name: str, rank: int, size: int) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng([step, rank, size, len(name)])
    return rng.normal(size=SHAPE).astype(np.float32)
