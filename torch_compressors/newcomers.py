"""What processes that join a job take from its members: step counters, and the names of residuals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gradcomp import Config
from gradcomp.adapter_api import Pipeline, state_of
from gradcomp.errors import ConfigError

__all__ = ["check_only_residuals", "shared_state", "take_shared_state"]

_TAKEN = ("rounds", "specs")


def check_only_residuals(config: Config) -> None:
    """Refuse specs with state that a newcomer does not have.

    Raises:
        ConfigError: a spec keeps more than a residual between exchanges.
    """
    if config.compress.two_level:
        raise ConfigError("compress.exchange: two_level needs fixed nodes; remove it")
    for spec in config.specs:
        kinds = set(state_of(spec)) - {"residual"}
        if kinds:
            raise ConfigError(
                f"'{spec}' keeps {', '.join(sorted(kinds))} between exchanges, which must be equal "
                "on all processes: choose a codec with or without residual, such as residual|int4"
            )


def shared_state(pipeline: Pipeline) -> dict[str, Any]:
    """The part of a member's state that is equal on all members; plain data for JSON."""
    own = pipeline.state_dict()
    return {**{key: own[key] for key in _TAKEN}, "residual": [*own["residual"]]}


def take_shared_state(
    pipeline: Pipeline,
    shared: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    forget: Iterable[str] = (),
) -> None:
    """Continue as a member with that `shared_state`; residuals that are missing are 0.

    Args:
        shapes: of all tensors by name.
        forget: tensors whose residuals start at 0 again.
    """
    own = pipeline.state_dict()
    kept = {name: one for name, one in own["residual"].items() if name not in set(forget)}
    residuals = {
        name: kept.get(name, np.zeros(math.prod(shapes[name]), np.float32))
        for name in shared["residual"]
    }
    taken = {key: shared[key] for key in _TAKEN}
    pipeline.load_state_dict({**own, **taken, "residual": residuals})
