"""Configurations for every tensor, and pipelines of a lone rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp import Config, Pipeline
from gradcomp.exchange.rounds import AllGather, AllReduce

FloatArray = npt.NDArray[np.float32]


def config_of(spec: Any, seed: int = 0, **compress: Any) -> Config:
    """The configuration that compresses every tensor, the small ones too.

    Args:
        spec: a spec, or a schedule of specs.
        seed: the job's seed.
        compress: other keys of the section ``compress``.
    """
    section = {"default": spec, "rules": [{"match": {}, "use": spec}], **compress}
    return Config.from_mapping({"version": 1, "seed": seed, "compress": section})


def send(pipeline: Pipeline, grad: FloatArray, name: str = "w") -> FloatArray:
    """Let a lone rank's pipeline average a tensor; returns the decode of what it sends."""
    one_round = pipeline.round(name, grad)
    request = next(one_round)
    assert isinstance(request, AllReduce | AllGather)
    reply = request.array.copy() if isinstance(request, AllReduce) else [request.frame.copy()]
    try:
        one_round.send(reply)
    except StopIteration as stop:
        average: FloatArray = stop.value
        return average
    raise AssertionError("the round has more than one request")


def residual_of(pipeline: Pipeline, name: str = "w") -> FloatArray:
    """A copy of the pipeline's residual of a tensor."""
    residual: FloatArray = pipeline.state_dict()["residual"][name]
    return residual


def momentum_of(pipeline: Pipeline, name: str = "w") -> FloatArray:
    """A copy of the pipeline's momentum of a tensor."""
    momentum: FloatArray = pipeline.state_dict()["momentum"][name]
    return momentum
