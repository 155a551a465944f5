"""Kinds of state that memories, codecs and algorithms keep from step to step."""

from __future__ import annotations

from collections.abc import Hashable

from gradcomp.codec.codec import get_codec
from gradcomp.codec.spec import Spec
from gradcomp.exchange.memory import (
    EF21,
    ESTIMATE,
    ESTIMATE_MEAN,
    ESTIMATE_ROWS,
    NORM,
    RESIDUAL_LR,
)
from gradcomp.exchange.select import ALGORITHMS

__all__ = ["REPLICATED_KINDS", "STATE_KINDS", "state_of"]

REPLICATED_KINDS = (
    *(kind for algorithm in ALGORITHMS.values() for kind in algorithm.replicated_kinds),
    "basis",
    RESIDUAL_LR,
    ESTIMATE_MEAN,
)
"""Kinds of state that are equal on all ranks."""

STATE_KINDS = (
    "residual",
    "momentum",
    *REPLICATED_KINDS,
    "carried",
    NORM,
    ESTIMATE,
    ESTIMATE_ROWS,
)
"""All kinds: keys of `Pipeline.state_dict`."""


def state_of(spec: Spec) -> dict[str, Hashable]:
    """The kinds of state that a spec keeps, each with a value that tells whether it fits.

    Another spec can take over a kind of state if it has an equal value for it.
    """
    kinds: dict[str, Hashable] = {}
    memory, algorithm = spec.memory, spec.algorithm
    if memory is not None and memory.name == EF21:
        kinds.update(dict.fromkeys((ESTIMATE, ESTIMATE_MEAN, ESTIMATE_ROWS)))
        if memory.params["momentum"]:
            kinds["momentum"] = EF21
    elif memory is not None:
        if memory.name != "signum":
            kinds["residual"] = None
        if memory.name != "residual":
            kinds["momentum"] = memory.name
    if spec.scales_lr:
        kinds[RESIDUAL_LR] = None
    if memory is not None and memory.params.get("limit"):
        kinds[NORM] = None
    if algorithm is not None:
        own = ALGORITHMS[algorithm.name].state_of(algorithm.params)
        if ESTIMATE in kinds:
            own.pop("residual", None)  # estimates take its place
        return {**kinds, **own}
    codec = get_codec(spec.first_codec)
    if codec.carried:
        kinds["carried"] = codec.name
    if "learns" in codec.caps:
        kinds["basis"] = codec.name
    return kinds
