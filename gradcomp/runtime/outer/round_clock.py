"""Clock of rounds of inner steps: the time between two exchanges, and its part in which training stood still."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gradcomp.runtime.measure.profile import OuterRound

__all__ = ["RoundClock"]


class RoundClock:
    """Measures rounds of inner steps; a round lasts from the start of one exchange to that of the next.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._held = 0.0
        self._held_since = self._began

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Count the time inside a ``with`` as held: the inner optimizer waits."""
        self._held_since = self._clock()
        try:
            yield
        finally:
            self._held += self._clock() - self._held_since

    def next_round(self, inner_steps: int) -> OuterRound:
        """End the round, inside of `holding`; returns its times."""
        now = self._clock()
        ended = OuterRound(inner_steps, now - self._began, self._held + now - self._held_since)
        self._began = self._held_since = now
        self._held = 0.0
        return ended
