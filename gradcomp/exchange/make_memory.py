"""The memory of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradcomp.codec.spec import Stage
from gradcomp.exchange.memory import (
    EF21,
    MOMENTUM_CORRECTION,
    NORM,
    RESIDUAL_LR,
    Memory,
    MemoryState,
    NoMemory,
    NormLimit,
    Residual,
    ScaledResidual,
)
from gradcomp.exchange.momentum import MomentumCorrection, Signum
from gradcomp.exchange.rates import Rates

__all__ = ["hands_over", "make_memory"]


def make_memory(
    stage: Stage | None, state: MemoryState, world_size: int, rates: Rates | None = None
) -> Memory:
    """The memory of a spec; its arrays live in ``state``.

    Args:
        rates: the present learning rates; None: unknown.
    """
    if stage is None:
        return NoMemory()
    params: Mapping[str, Any] = stage.params
    if stage.name == MOMENTUM_CORRECTION:
        velocities, momenta = state.setdefault("residual", {}), state.setdefault("momentum", {})
        return MomentumCorrection(params, velocities, momenta, world_size)
    if stage.name == "signum":
        return Signum(params["momentum"], state.setdefault("momentum", {}))
    residuals = state.setdefault("residual", {})
    weights = params["beta"], params["gamma"]
    limit = NormLimit(params["limit"], state.setdefault(NORM, {})) if params["limit"] else None
    if params["lr"] == "scale":
        last = state.setdefault(RESIDUAL_LR, {})
        return ScaledResidual(*weights, residuals, last, rates or Rates(), params["average"], limit)
    return Residual(*weights, residuals, params["average"], limit)


def hands_over(stage: Stage | None) -> bool:
    """Whether a memory leaves all arithmetic on elements to devices.

    Its gradients and arrays may then be on any of them.
    """
    if stage is None:
        return True
    if stage.name == MOMENTUM_CORRECTION:
        return bool(stage.params["clip"] == "none")
    if stage.name == EF21:
        return not stage.params["momentum"]
    return stage.name == "residual" and stage.params["average"] == 0 == stage.params["limit"]
