"""Configurations for every tensor, and pipelines of a lone rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp import Config, Pipeline
from gradcomp.exchange.rounds import AllGather, AllReduce

FloatArray = npt.NDArray[np.float32]


def configured(default: Any, seed: int = 0, **compress: Any) -> Config:
    """The configuration with a default spec, or schedule of specs.

    Args:
        default: the spec of tensors without a rule, except for small ones, which travel dense.
        seed: the job's seed.
        compress: other keys of the section ``compress``.
    """
    return Config.from_mapping(
        {"version": 1, "seed": seed, "compress": {"default": default, **compress}}
    )


def config_of(spec: Any, seed: int = 0, **compress: Any) -> Config:
    """The configuration with one spec for every tensor, the small ones too; see `configured`."""
    return configured(spec, seed, rules=[{"match": {}, "use": spec}], **compress)


def rules_of(specs: Mapping[Any, Any], pattern: str = "*.{}.*") -> list[dict[str, Any]]:
    """A rule for each name, of the tensors that match its ``pattern``."""
    return [{"match": {"name": pattern.format(name)}, "use": spec} for name, spec in specs.items()]


def send(pipeline: Pipeline, grad: FloatArray, name: str = "w") -> FloatArray:
    """Let a lone rank's pipeline average a tensor; returns the decode of the sent frame."""
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
