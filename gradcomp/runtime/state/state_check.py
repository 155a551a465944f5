"""Validation of saved states, before anything of the present state changes.

A state may come from a damaged file, so every key, type, number and array is hostile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradcomp.codec.spec import parse
from gradcomp.errors import SpecError, StateError
from gradcomp.exchange.memory import ESTIMATE, ESTIMATE_MEAN, ESTIMATE_ROWS, NORM
from gradcomp.exchange.state_kinds import STATE_KINDS
from gradcomp.runtime.policy.decision import CANDIDATES, CONTENDERS, PolicyGroup

__all__ = ["STATE_VERSION", "checked_states"]

STATE_VERSION = 1

_REMEDY = "the state is damaged or no compressor state: load an earlier checkpoint"
_OTHERS = ("servers",)
"""Keys of engines in addition to the pipeline's; their adapters check them."""

_LATER = {NORM, ESTIMATE, ESTIMATE_MEAN, ESTIMATE_ROWS}
"""Kinds that earlier versions did not have."""

_MAX_RANKS = 2**20
_MAX_COUNT = 2**48


def checked_states(state: object) -> list[Mapping[str, Any]]:
    """The states in ``state``, which is one of them or a sequence, all of one run.

    Raises:
        StateError: a state is damaged, incomplete, or of another version or run. The message names
            the key and the value.
    """
    if isinstance(state, Mapping):
        states: list[Any] = [state]
    elif isinstance(state, Sequence) and not isinstance(state, str | bytes):
        states = list(state)
    else:
        raise StateError(
            f"a compressor state is a {_type(state)}; it must be a mapping, as state_dict returns, "
            "or the list of all ranks' states"
        )
    if not states:
        raise StateError("an empty list of compressor states; give the states of all ranks")
    for saved in states:
        _check(saved)
    for text, key in (("world sizes", "world_size"), ("ranks per node", "ranks_per_node")):
        sizes = sorted({saved[key] for saved in states})
        if len(sizes) > 1:
            raise StateError(
                f"compressor states of different {text}: {', '.join(map(str, sizes))}; give "
                "the states of all ranks of one run"
            )
    return states


def _check(state: object) -> None:
    if not isinstance(state, Mapping):
        raise StateError(f"a compressor state is a {_type(state)}; it must be a mapping: {_REMEDY}")
    known = {*_HEADER, *STATE_KINDS}
    missing = known - set(state) - _LATER
    if missing:
        raise StateError(f"not a compressor state: it lacks {', '.join(sorted(missing))}")
    version = state["version"]
    if isinstance(version, int) and not isinstance(version, bool) and version != STATE_VERSION:
        raise StateError(
            f"compressor state of version {_shown(version)}; this gradcomp reads {STATE_VERSION}"
        )
    extra = sorted(map(_shown, set(state) - known - set(_OTHERS)))
    if extra:
        raise StateError(f"a compressor state has unknown keys: {', '.join(extra)}; {_REMEDY}")
    for key, check in _HEADER.items():
        check(key, state[key])
    rank, size, per_node = (state[key] for key in ("rank", "world_size", "ranks_per_node"))
    if rank >= size:
        raise _wrong("rank", rank, f"in [0, {size}), the world size")
    if size % per_node:
        raise _wrong("ranks_per_node", per_node, f"a divisor of {size}, the world size")
    for kind in STATE_KINDS:
        for name, array in _by_name(kind, state.get(kind, {})).items():
            _array(f"{kind} of '{name}'", array)
    for name, residual in state["residual"].items():
        momentum = state["momentum"].get(name)
        if momentum is not None and momentum.size != residual.size:
            raise _wrong(f"momentum of '{name}'", momentum, f"of {residual.size} elements")


def _integer(low: int, high: int) -> Callable[[str, Any], None]:
    def check(key: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise _wrong(key, value, f"a whole number in [{low}, {high})")
        if not low <= value < high:
            raise _wrong(key, value, f"in [{low}, {high})")

    return check


_count = _integer(0, _MAX_COUNT)


def _by_name(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(key, value, "a mapping by tensor name")
    for name in value:
        if not isinstance(name, str):
            raise _wrong(f"a tensor name in {key}", name, "a string")
    return value


def _rounds(key: str, value: Any) -> None:
    for name, count in _by_name(key, value).items():
        _count(f"{key} of '{name}'", count)


def _specs(key: str, value: Any) -> None:
    for name, spec in _by_name(key, value).items():
        _spec(f"{key} of '{name}'", spec)


def _spec(key: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _wrong(key, value, "a spec string")
    try:
        parse(value)
    except SpecError as error:
        raise StateError(
            f"{key} in a compressor state is {_shown(value)}, which is not a known spec: load the "
            f"plug-in that it names, or an earlier checkpoint. {error}"
        ) from error


def _decisions(key: str, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise _wrong(key, value, "a list of decisions")
    fields = {*PolicyGroup._fields, "choice", "seconds", "step_seconds", "predicted"}
    for number, decision in enumerate(value):
        where = f"{key}[{number}]"
        # Earlier releases had no predictions.
        if not isinstance(decision, Mapping) or {*decision, "predicted"} != fields:
            raise _wrong(where, decision, f"a mapping with the keys {', '.join(sorted(fields))}")
        _spec(f"{where}.spec", decision["spec"])
        if not isinstance(decision["exchange"], str):
            raise _wrong(f"{where}.exchange", decision["exchange"], "the name of an exchange")
        _integer(0, 64)(f"{where}.size", decision["size"])
        if not isinstance(decision["choice"], str) or decision["choice"] not in CANDIDATES:
            raise _wrong(f"{where}.choice", decision["choice"], f"one of {', '.join(CANDIDATES)}")
        _times(f"{where}.seconds", decision["seconds"], CANDIDATES)
        for name, names in (("step_seconds", CONTENDERS), ("predicted", CANDIDATES)):
            times = decision.get(name)
            if times is None:
                continue
            _times(f"{where}.{name}", times, names)
            if not times or min(times.values()) <= 0:
                raise _wrong(f"{where}.{name}", times, "times above 0, or None")


def _times(key: str, value: Any, names: Sequence[str]) -> None:
    if not isinstance(value, Mapping) or not set(value) <= set(names):
        raise _wrong(key, value, f"times by {', '.join(names)}")
    for name, time in value.items():
        _seconds(f"{key}.{name}", time)


def _seconds(key: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < 1e9:
        raise _wrong(key, value, "a number of seconds in [0, 1e9)")


def _loss_scale(key: str, value: Any) -> None:
    if not isinstance(value, float) or not 0 < value < math.inf:
        raise _wrong(key, value, "a positive number")


def _array(key: str, value: Any) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.ndim != 1:
        raise _wrong(key, value, "a flat array of float32")
    finite = np.isfinite(value)
    if not finite.all():
        at = int(np.argmin(finite))
        raise StateError(
            f"{key} in a compressor state has {value[at]} at element {at}, "
            f"{value.size - int(finite.sum())} of {value.size} are not finite; all must be finite: "
            "load a checkpoint from before the step in which training diverged"
        )


_HEADER: dict[str, Callable[[str, Any], None]] = {
    "version": _integer(STATE_VERSION, STATE_VERSION + 1),
    "rank": _integer(0, _MAX_RANKS),
    "world_size": _integer(1, _MAX_RANKS),
    "ranks_per_node": _integer(1, _MAX_RANKS),
    "rounds": _rounds,
    "specs": _specs,
    "decisions": _decisions,
    "loss_scale": _loss_scale,
}
"""Keys of values other than arrays, each with its check."""


def _wrong(key: str, value: object, allowed: str) -> StateError:
    return StateError(
        f"{key} in a compressor state is {_shown(value)}; it must be {allowed}: {_REMEDY}"
    )


def _shown(value: object) -> str:
    """A short form of any value."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None and not isinstance(value, np.generic):
        return f"a {_type(value)} of {dtype} and shape {tuple(shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _type(value: object) -> str:
    return type(value).__name__
