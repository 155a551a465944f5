"""The comparison of all ranks in each step: progress, replicated state and parameters.

Ranks that are a step apart, or that loaded states of different steps, would train on with models
that drift apart. Each rank's text is short and travels beside the first gradients of a step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from gradcomp.codec.arrays import ByteArray
from gradcomp.errors import ProtocolError

__all__ = [
    "Digests",
    "by_value",
    "check_step",
    "digest_arrays",
    "digest_parameter",
    "step_text",
]

Digests = tuple[int, list[tuple[str, str]]]
"""A step, and name and digest of each parameter before it, in the order of the model."""

_ROUNDED = 64
"""Texts are padded to multiples of this size, so that engines see equal sizes in most steps."""

_PARAMETERS = "parameters"
_DIGITS = 8


def step_text(
    progress: Mapping[str, Any],
    state: Mapping[str, Any] | None = None,
    parameters: Digests | None = None,
) -> ByteArray:
    """One rank's text of a step: JSON that ends with a line break.

    Args:
        progress: values by name, which must be equal on all ranks in every step.
        state: the same of a state that is new or was loaded before this step; None otherwise.
        parameters: in some steps, the digests of all parameters before an earlier step.
    """
    content = {"progress": dict(progress), "state": state, _PARAMETERS: parameters}
    text = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    size = -(-(len(text) + 1) // _ROUNDED) * _ROUNDED
    # Writable, as torch warns about other arrays.
    return np.frombuffer(bytearray(text.ljust(size - 1) + b"\n"), np.uint8)


def check_step(replies: ByteArray, world_size: int) -> None:
    """Compare the ranks' texts.

    Args:
        replies: the `step_text` of each rank, one after the other in rank order.

    Raises:
        ProtocolError: the ranks differ; every rank raises it, with the same message.
    """
    texts = [_read(line, rank) for rank, line in enumerate(bytes(replies).splitlines())]
    if len(texts) != world_size:
        raise ProtocolError(
            f"{len(texts)} texts from {world_size} ranks before a step: a rank runs another version"
        )
    apart = _differences([one["progress"] for one in texts])
    if apart:
        raise ProtocolError(
            f"the ranks are not at the same point of the training:\n{apart}\nA rank has skipped a "
            "step, or has loaded a state of another step: call set_epoch, set_step and load at the "
            "same steps on every rank, with states of one step"
        )
    states = [one["state"] for one in texts]
    if any(states) and not all(states):
        loaded = _ranks([rank for rank, state in enumerate(states) if state])
        others = _ranks([rank for rank, state in enumerate(states) if not state])
        raise ProtocolError(
            f"{loaded} begins this step with a new or loaded compression state, and {others} goes "
            "on with its own: load states on every rank, before the same step"
        )
    apart = _differences([state for state in states if state])
    if apart:
        raise ProtocolError(
            f"the ranks' compression states differ where they must be equal:\n{apart}\nThese are "
            "states of different steps or runs: load states that were saved in one step"
        )
    _check_parameters([one[_PARAMETERS] for one in texts])


def digest_arrays(arrays: Mapping[str, Any]) -> str:
    """A digest of arrays by name: 16 hexadecimal digits."""
    digest = blake2b(digest_size=8)
    for name in sorted(arrays):
        digest.update(f"{name}\0{arrays[name].nbytes}\0".encode())
        digest.update(memoryview(arrays[name]).cast("B"))
    return digest.hexdigest()


def digest_parameter(data: Any) -> str:
    """A digest of one parameter's bytes, a C-contiguous buffer."""
    return blake2b(memoryview(data).cast("B"), digest_size=_DIGITS // 2).hexdigest()


def by_value(values: Sequence[Any]) -> str:
    """Text such as ``9 on ranks 0 and 2; 6 on rank 1``."""
    of_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        of_value.setdefault(str(value), []).append(rank)
    return "; ".join(f"{value} on {_ranks(ranks)}" for value, ranks in of_value.items())


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    listed = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"ranks {listed}"


def _differences(of_ranks: Sequence[Mapping[str, Any]]) -> str:
    """A line for each name whose values differ; empty if none do."""
    names = sorted({name for values in of_ranks for name in values})
    lines = []
    for name in names:
        values = [values.get(name, "none") for values in of_ranks]
        if any(value != values[0] for value in values):
            lines.append(f"  {name}: {by_value(values)}")
    return "\n".join(lines)


def _check_parameters(of_ranks: Sequence[Digests | None]) -> None:
    given = [one for one in of_ranks if one is not None]
    if not given:
        return
    step, first = given[0]
    listed = [dict(one[1]) if one is not None else {} for one in of_ranks]
    apart = [name for name, _ in first if len({one.get(name) for one in listed}) > 1]
    if apart:
        values = by_value([one.get(apart[0], "none") for one in listed])
        raise ProtocolError(
            f"the ranks' models have drifted apart: {len(apart)} of {len(first)} parameters differ "
            f"before step {step}, first '{apart[0]}' (digests: {values}); see whether all ranks "
            "began with the same weights, and whether a rank changes its own"
        )


def _read(line: bytes, rank: int) -> Mapping[str, Any]:
    try:
        text = json.loads(line)
        progress, state, parameters = text["progress"], text["state"], text[_PARAMETERS]
        if not isinstance(progress, dict) or not isinstance(state or {}, dict):
            raise TypeError("no mapping")
        if parameters is not None:
            step, digests = parameters
            parameters = int(step), [(str(name), str(digest)) for name, digest in digests]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(
            f"rank {rank} sends no text of gradcomp before a step ({error}): see whether all ranks "
            "run the same version"
        ) from error
    return {"progress": progress, "state": state, _PARAMETERS: parameters}
