"""State of jobs where ranks come and go: what belongs to a rank, and what all ranks share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcomp.exchange.memory import ESTIMATE, ESTIMATE_MEAN, MOMENTUM_CORRECTION, NORM
from gradcomp.exchange.state_kinds import REPLICATED_KINDS, STATE_KINDS
from gradcomp.runtime.pipeline import Pipeline
from gradcomp.runtime.state.rank_state import State

__all__ = ["common_state", "moved", "placed", "resized", "take_common_state"]

_COMMON = ("rounds", "specs", "loss_scale", "decisions")
_OWN_KINDS = ("residual", "momentum")


def resized(state: State, rank: int, world_size: int) -> State:
    """A rank's state for the same rank in a job of another size.

    The mean of residuals over the ranks is what is still to be applied. Residuals are multiplied by
    the new size over the old one, so that ranks that come, with residuals of 0, leave the mean as it
    is. Ranks that go take theirs along. EF21's estimates become the mean of all, which then stays
    their mean.

    Args:
        state: of `Pipeline.state_dict`, with one rank in a node.
    """
    same = world_size == state["world_size"]
    factor = np.float32(world_size / state["world_size"])
    return {
        **state,
        "rank": rank,
        "world_size": world_size,
        "residual": {name: residual * factor for name, residual in state["residual"].items()},
        ESTIMATE: {},
        # Measured with another number of ranks.
        "decisions": state["decisions"] if same else [],
    }


def placed(state: State, rank: int, world_size: int) -> State:
    """A rank's state as it is, for another rank and size.

    For members that change from exchange to exchange: who is absent comes back with its residual.
    """
    return {**state, "rank": rank, "world_size": world_size}


def moved(pipeline: Pipeline, state: State, epoch: int | None = None) -> Pipeline:
    """A process's compression, moved to the rank and size in its state.

    Args:
        pipeline: the compression so far; its statistics go on.
        state: see `placed` and `resized`.
        epoch: see `Pipeline.set_epoch`; None before the first.
    """
    new = Pipeline(pipeline.config, state["rank"], state["world_size"], elastic=pipeline.elastic)
    new.load_state_dict(state)
    if pipeline.last_step.can_discard:
        new.last_step.allow_discard()
    if epoch is not None:
        new.set_epoch(epoch)
    new.keep_stats(pipeline.stats)
    return new


def common_state(pipeline: Pipeline) -> dict[str, Any]:
    """All of a rank's state that is equal on all ranks, and the names of the arrays that differ."""
    state = pipeline.state_dict()
    return {
        "epoch": pipeline.epoch,
        **{key: state[key] for key in _COMMON},
        **{kind: state[kind] for kind in REPLICATED_KINDS},
        "names": {kind: [*state[kind]] for kind in _OWN_KINDS},
        "dense momentum": {
            name: momentum
            for name, momentum in state["momentum"].items()
            if _is_dense(name, state["residual"], state["specs"])
        },
    }


def take_common_state(
    pipeline: Pipeline,
    common: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Continue as a rank with that `common_state`; own arrays that are missing are 0, and EF21's those of the mean.

    Args:
        shapes: of all tensors by name.
    """
    state = pipeline.state_dict()
    arrays: dict[str, Any] = {kind: {} for kind in STATE_KINDS}
    arrays.update({kind: state[kind] for kind in ("carried", NORM)})
    arrays.update({kind: common[kind] for kind in REPLICATED_KINDS})
    for kind in _OWN_KINDS:
        for name in common["names"][kind]:
            missing = common[ESTIMATE_MEAN].get(name) if kind == "momentum" else None
            if missing is None:
                missing = np.zeros(math.prod(shapes[name]), np.float32)
            arrays[kind][name] = state[kind].get(name, missing)
    arrays["momentum"].update(common["dense momentum"])
    pipeline.load_state_dict({**state, **arrays, **{key: common[key] for key in _COMMON}})
    if common["epoch"] is not None:
        pipeline.set_epoch(common["epoch"])


def _is_dense(name: str, residuals: Mapping[str, Any], specs: Mapping[str, str]) -> bool:
    """Whether a momentum is applied to averages, as DGC's of tensors that it sends dense."""
    return name not in residuals and specs.get(name, "").startswith(MOMENTUM_CORRECTION)
