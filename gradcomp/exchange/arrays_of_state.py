"""Checks of arrays in a state that may come from a damaged or foreign checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.errors import StateError

__all__ = ["arrays_like", "check_mapping"]


def check_mapping(state: object) -> None:
    """Raise StateError unless a state is a mapping."""
    if not isinstance(state, Mapping):
        raise StateError(
            f"the state is a {type(state).__name__}; it must be a mapping, as state_dict returns"
        )


def arrays_like(
    state: Mapping[str, Any], kind: str, sizes: Mapping[str, int]
) -> dict[str, FloatArray]:
    """Copies of the arrays of one kind of a state.

    Raises:
        StateError: names or sizes are not those of ``sizes``, or an array is not of finite float32.
    """
    check_mapping(state)
    found = state.get(kind)
    if not isinstance(found, Mapping) or set(found) != set(sizes):
        raise StateError(f"the state's '{kind}' must have the arrays {', '.join(sizes) or 'none'}")
    result = {}
    for name, size in sizes.items():
        value = found[name]
        if not isinstance(value, np.ndarray) or value.dtype != np.float32:
            dtype = f" of {value.dtype}" if hasattr(value, "dtype") else ""
            raise StateError(
                f"the {kind} of '{name}' is a {type(value).__name__}{dtype}; it must be an array of "
                "float32: load an earlier checkpoint"
            )
        if value.size != size:
            raise StateError(
                f"the {kind} of '{name}' has {value.size} elements instead of {size}: the state is "
                "of another model"
            )
        if not np.isfinite(value).all():
            raise StateError(
                f"the {kind} of '{name}' has NaN or Inf; all elements must be finite: load a "
                "checkpoint from before the step in which training diverged"
            )
        result[name] = value.reshape(-1).copy()
    return result
