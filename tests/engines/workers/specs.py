"""Every codec, and one of a plug-in, alone and with every memory, and algorithms: rules for tensors of one model."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcomp import Config
from gradcomp.codec import spec
from gradcomp.config.schema import MOMENTUM_CORRECTION
from support.pipelines import configured, rules_of
from support.plugins import register_python
from support.scope import by_scope

STEPS = by_scope(25, 100)
"""Steps of two ranks of Horovod."""

FEW_STEPS = by_scope(12, 100)
"""Steps of three ranks, and of TensorFlow."""

_CODECS = [stage.example for stage in spec.stages() if stage.kind == "codec"]
_CODECS.append("bf8(stochastic=true)")  # which `config` registers: not where tests are collected
_MEMORIES = [
    spec.parse(stage.example).stages[0].text
    for stage in spec.stages()
    # All specs of a job have momentum correction or none; see dgc.py.
    if stage.kind == "memory" and stage.name != MOMENTUM_CORRECTION
]
_ALGORITHMS = [
    "powersgd(rank=2,start_step=10,variant=library)",
    "residual|chunk_allreduce(ratio=0.05,chunk=16)",
    "powersgd(rank=1,start_step=0,variant=paper,orthogonalization=qr,values=bf16)",
    "powersgd(rank=3,start_step=5,iters_per_step=2,warm_start=false,orthogonalization=cholesky,variant=library)",
    "atomo(rank=2)",
    "residual|atomo(rank=1,unbiased=false,values=bf16)",
    "ef21|powersgd(rank=2,start_step=0)",
    "ef21(momentum=0.9)|chunk_allreduce(ratio=0.05,chunk=16)",
    "signsgd_mv",
    "signum|signsgd_mv(ties=plus)",
]
_PRESETS = [
    "residual|adaptive(rate=0.5,preset=basis)",
    "ef21(momentum=0.9)|adaptive(rate=0.5,preset=basis)",
    "ef21(momentum=0.9)|topk(ratio=0.01)",
    "ef21(momentum=0.9)|identity",
]
SPECS = [
    *_CODECS,
    *(f"{memory}|{codec}" for memory in _MEMORIES for codec in _CODECS),
    *_ALGORITHMS,
    *_PRESETS,
]

SHAPES = {"matrix": (48, 32), "odd": (701,), "one": (1,), "scalar": (), "empty": (0,)}


def config() -> Config:
    """Tensors with names that begin with ``N.`` take spec N."""
    register_python()
    rules = rules_of(dict(enumerate(SPECS)), "{}.*")
    return configured("identity", seed=7, rules=rules)


def normal(size: int, *seed: int) -> Any:
    """Normal values that all ranks can compute."""
    return np.random.default_rng(seed).standard_normal(size, np.float32)
