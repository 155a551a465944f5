"""An engine with requests that are measured: the time of waiting, and by phase while there is a profile."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from gradcomp.exchange.engine import Engine
from gradcomp.exchange.rounds import Request
from gradcomp.runtime.measure.stats import Stats
from gradcomp.stopwatch import Phase

__all__ = ["ProfiledEngine"]


class ProfiledEngine:
    """Wraps an engine; counts in ``stats`` the time of waiting for replies, and faults.

    Args:
        stats: statistics of the rank that uses the engine.
    """

    def __init__(self, engine: Engine, stats: Stats) -> None:
        self._engine = engine
        self._stats = stats

    def start(self, request: Request) -> tuple[Request, Any]:
        """See `gradcomp.exchange.engine.Engine`."""
        profile = self._stats.profile
        if profile is None:
            return request, self._checked(self._engine.start, request)
        phase, tensor = profile.of_request(request)
        launch: Phase = "error" if phase == "error" else "copy"
        return request, profile.measure(launch, tensor, self._checked, self._engine.start, request)

    def finish(self, handle: tuple[Request, Any]) -> Any:
        """See `gradcomp.exchange.engine.Engine`."""
        request, inner = handle
        profile = self._stats.profile
        begin = perf_counter()
        try:
            if profile is None:
                return self._checked(self._engine.finish, inner)
            phase, tensor = profile.of_request(request)
            return profile.measure(phase, tensor, self._checked, self._engine.finish, inner)
        finally:
            self._stats.spend(waiting=perf_counter() - begin)

    def _checked(self, function: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return function(argument)
        except Exception as error:
            self._stats.count_fault(error)
            raise
