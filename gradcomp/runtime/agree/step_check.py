"""The comparison of all ranks in each step: progress, replicated state and parameters.

Ranks that are a step apart, or that loaded states of different steps, would train on with models
that drift apart. Each rank's text is short and travels next to the first gradients of a step.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from gradcomp.codec.arrays import ByteArray
from gradcomp.errors import ProtocolError
from gradcomp.runtime.agree.comparison import (
    Digests,
    by_value,
    check_equal,
    check_parameters,
    listed,
    ranks_text,
    read_digests,
    read_object,
)

__all__ = ["ParametersAt", "call_text", "check_step", "gradients_text", "step_text"]

_CALL = "call"

_NAMED = 3
"""Parameters without gradients that a message names."""

_ROUNDED = 64
"""Texts are padded to multiples of this size, so that engines see equal sizes in most steps."""


class ParametersAt(NamedTuple):
    """The digests of all parameters before a step."""

    step: int
    digests: Digests


def step_text(
    progress: Mapping[str, Any],
    state: Mapping[str, Any] | None = None,
    parameters: ParametersAt | None = None,
    gradients: str | None = None,
) -> ByteArray:
    """One rank's text of a step: JSON that ends with a line break.

    Args:
        progress: values by name, which must be equal on all ranks in every step.
        state: the same of a state that is new or was loaded before this step; None otherwise.
        parameters: in some steps, the digests before an earlier step.
        gradients: the parameters that have one, as `gradients_text` has it; None for all of them.
    """
    content: dict[str, Any] = {"progress": progress}
    if state is not None:
        content["state"] = state
    if parameters is not None:
        content["parameters"] = parameters
    if gradients is not None:
        content["gradients"] = gradients
    text = json.dumps(content, separators=(",", ":")).encode()
    size = -(-(len(text) + 1) // _ROUNDED) * _ROUNDED
    # Writable, as torch warns about other arrays.
    return np.frombuffer(bytearray(text.ljust(size - 1) + b"\n"), np.uint8)


def gradients_text(names: Collection[str], parameters: Collection[str]) -> str | None:
    """Which of the parameters have gradients in a step, for `step_text`.

    Args:
        names: those that have.
        parameters: all; the same on every rank.
    """
    without = [name for name in parameters if name not in names]
    if not without:
        return None
    digest = blake2b("\n".join(without).encode(), digest_size=8).hexdigest()
    more = ", ..." if len(without) > _NAMED else ""
    return f"all but {len(without)}, {', '.join(without[:_NAMED])}{more}, digest {digest}"


def check_step(replies: ByteArray, world_size: int) -> None:
    """Compare the ranks' texts.

    Args:
        replies: the `step_text` of each rank, one after the other in rank order.

    Raises:
        ProtocolError: the ranks differ; every rank raises it, with the same message.
    """
    lines = bytes(replies).splitlines()
    if len(lines) != world_size:
        raise ProtocolError(
            f"{len(lines)} texts from {world_size} ranks before a step: a rank runs another version"
        )
    if len(set(lines)) == 1:  # this rank's own text is among them
        return
    texts = [_read(line, rank) for rank, line in enumerate(lines)]
    _check_calls([text.progress.get(_CALL) for text in texts])
    check_equal(
        [text.progress for text in texts],
        "the ranks are not at the same point of the training",
        "A rank has skipped a step, or has loaded a state of another step: call set_epoch, set_step "
        "and load at the same steps on every rank, with states of one step",
    )
    check_equal(
        [{"gradients": text.gradients or "all"} for text in texts],
        "the ranks have gradients of different parameters in this step",
        "The engine would average one parameter's gradient with another's: give every parameter a gradient "
        "on each rank, for example by adding 0 times its sum to the loss",
    )
    loaded = [rank for rank, text in enumerate(texts) if text.state is not None]
    if loaded and len(loaded) < world_size:
        others = [rank for rank, text in enumerate(texts) if text.state is None]
        raise ProtocolError(
            f"{listed(loaded)} begins this step with a new or loaded compression state, and "
            f"{listed(others)} goes on with its own: load states on every rank, before the same step"
        )
    check_equal(
        [text.state for text in texts if text.state is not None],
        "the ranks' compression states differ where they must be equal",
        "These are states of different steps or runs: load states that were saved in one step",
    )
    step = next((text.parameters.step for text in texts if text.parameters is not None), None)
    if step is not None:
        digests = [[] if text.parameters is None else text.parameters.digests for text in texts]
        check_parameters(digests, f"before step {step}")


def call_text(call: str) -> ByteArray:
    """One rank's text, as of `step_text`, in a call between two steps that every rank must make.

    Args:
        call: such as "save()".
    """
    return step_text({_CALL: call})


def _check_calls(calls: Sequence[Any]) -> None:
    """Compare the calls in which the ranks are; None for a rank that begins a step."""
    named = list(dict.fromkeys(str(call) for call in calls if call is not None))
    if not named:
        return
    missing = [rank for rank, call in enumerate(calls) if str(call) != named[0]]
    if missing:
        where = by_value(["a step" if call is None else call for call in calls])
        raise ProtocolError(
            f"every rank must call {named[0]}, between the same two steps, and {ranks_text(missing)} not "
            f"({where}): call it on all ranks, outside of conditions on the rank"
        )


class _Text(NamedTuple):
    progress: Mapping[str, Any]
    state: Mapping[str, Any] | None
    parameters: ParametersAt | None
    gradients: str | None


def _read(line: bytes, rank: int) -> _Text:
    content = read_object(line, rank)
    progress, state = content.get("progress"), content.get("state")
    given = content.get("parameters")
    try:
        if not isinstance(progress, dict) or not isinstance(state, dict | None):
            raise TypeError("no mappings")
        parameters = None
        if given is not None:
            step, digests = given
            parameters = ParametersAt(int(step), read_digests(digests, rank))
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(
            f"rank {rank} sends no text of a step ({error}): see whether all ranks run the same "
            "version"
        ) from error
    gradients = content.get("gradients")
    return _Text(progress, state, parameters, None if gradients is None else str(gradients))
