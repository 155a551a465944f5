"""Attributes the time of functions to the phases of a step, while a profile is active."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

__all__ = ["PHASES", "Phase", "Stopwatch", "active", "timed"]

Phase = Literal["compensate", "encode", "wait", "decode", "copy", "error"]

PHASES: Sequence[Phase] = ("compensate", "encode", "wait", "decode", "copy", "error")
"""Phases of a step: ``compensate``, memories outside the encoder; ``encode``; ``wait`` for the
network; ``decode``; ``copy``, all other work of rounds and engines; ``error``, measuring the error
where that was asked for."""

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


class Stopwatch(Protocol):
    """Measures function calls; `gradcomp.runtime.measure.profile.Profile` is one."""

    def measure(
        self,
        phase: Phase,
        tensor: str | None,
        function: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a function and add its time to a phase; ``tensor`` is None for the caller's."""


class _Active(threading.local):
    stopwatch: Stopwatch | None = None


active = _Active()
"""The stopwatch of the round that this thread resumes, if that round is profiled."""


def timed(phase: Phase) -> Callable[[Callable[_Params, _Result]], Callable[_Params, _Result]]:
    """A decorator: adds a function's time to a phase while a profiled round calls it."""

    def decorate(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
        @functools.wraps(function)
        def measured(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
            stopwatch = active.stopwatch
            if stopwatch is None:
                return function(*args, **kwargs)
            result: _Result = stopwatch.measure(phase, None, function, *args, **kwargs)
            return result

        return measured

    return decorate
