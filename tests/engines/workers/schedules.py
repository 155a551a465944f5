"""Specs that follow one another, on real Horovod."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from workers import harness
from workers.harness import MATRIX, Cases
from workers.ranks import Compression, hvd

from gradcomp import Config, ConfigError, Loopback
from support.pipelines import configured, rules_of

cases = Cases()

PLANS: dict[str, list[Any]] = {
    "sparse": ["fp16", {"from_step": 2, "use": "residual|topk(k=20)"}],
    "dense": ["residual|topk(k=20)", {"from_step": 3, "use": "identity"}],
    "low_rank": ["residual|sign", {"from_step": 2, "use": "powersgd(rank=2,start_step=3)"}],
    "dropped": [
        "powersgd(rank=1,start_step=0)",
        {"from_step": 3, "use": "residual|int4", "exchange": "sra", "state": "drop"},
    ],
    "epochs": ["identity", {"from_epoch": 1, "use": "residual|topk(k=9)"}],
}


def config() -> Config:
    rules = rules_of(PLANS, "*{}.*")
    return configured("identity", rules=rules, bucket_bytes=8000)


@cases
def specs_follow_one_another_as_in_the_loopback() -> None:
    """Gradients arrive in another order on each rank; the state passes through a checkpoint before
    every step."""
    shapes = {f"{name}.{n}": (30, 32 + n) for n in range(3) for name in PLANS}
    params = harness.parameters(shapes)
    loopback = Loopback(config(), hvd.size())
    order = np.random.default_rng(hvd.rank())
    compression = Compression(config(), params.items())
    opt = harness.optimizer(params, compression)
    for step in range(6):
        for one in (compression, loopback):
            one.set_epoch(step // 2)
        compression.load_state_dict(compression.state_dict())
        harness.check_step(opt, params, loopback, step, order)


@cases
def names_are_needed_to_count_steps() -> None:
    """Names are required even if no spec keeps state."""
    plan = ["fp16", {"from_step": 2, "use": "bf16"}]
    of_steps = configured(plan)
    harness.refused(lambda: Compression(of_steps), ConfigError, "counts steps", "named_parameters")


@cases
def other_dtypes_get_what_was_left_unsent() -> None:
    """A float64 gradient keeps its dtype, except in the step that adds the residual."""
    plan = ["residual|topk(k=1)", {"from_step": 1, "use": "identity"}]
    settings = configured(plan)
    params = harness.parameters({"w": MATRIX}, torch.float64)
    opt = harness.optimizer(params, Compression(settings, params.items()))
    total = 0
    for _ in range(3):
        ones = {name: torch.ones_like(p) for name, p in params.items()}
        (average,) = harness.averages(opt, params, ones).values()
        total = total + average
    harness.check_equal(total, 3 * torch.ones_like(average))
