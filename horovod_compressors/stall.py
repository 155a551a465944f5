"""A long wait for other ranks: a warning and then an error, both with the ranks that are missing.

The limits are Horovod's: ``HOROVOD_STALL_CHECK_TIME_SECONDS`` (60, the warning; none if
``HOROVOD_STALL_CHECK_DISABLE`` is 1) and ``HOROVOD_STALL_SHUTDOWN_TIME_SECONDS`` (0, no error).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache

from gradcomp.adapter_api import ranks_text
from gradcomp.errors import PeerError
from horovod_compressors.liveness import job_marks, seconds_of

__all__ = ["StallCheck"]

_CHECK = "HOROVOD_STALL_CHECK_TIME_SECONDS"
_SHUTDOWN = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"

_BEATS = 12
"""Marks of a waiting rank until the warning; a liveness check takes three of them."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Limits:
    """Seconds of a wait until a mark, the warning and the error; infinite for never."""

    beat: float
    warning: float
    error: float


@lru_cache(1)
def _limits() -> _Limits:
    warning = seconds_of(_CHECK, 60.0)
    if job_marks() is None or warning <= 0 or os.environ.get("HOROVOD_STALL_CHECK_DISABLE") == "1":
        return _Limits(float("inf"), float("inf"), float("inf"))
    error = seconds_of(_SHUTDOWN, 0.0)
    # Horovod has the same rule: no error before the warning.
    return _Limits(warning / _BEATS, warning, error if error > warning else float("inf"))


class StallCheck:
    """One wait; the caller asks `look` now and then.

    Args:
        over: whether the wait is over.
        ranks: the ranks of the collective; None for all.
    """

    def __init__(self, over: Callable[[], bool], ranks: Collection[int] | None = None) -> None:
        self._over = over
        self._ranks = ranks
        self._began = time.monotonic()
        self._next_beat = _limits().beat
        self._warned = False

    def look(self) -> None:
        """Renew this rank's mark in a long wait, and tell which ranks do not answer.

        Raises:
            PeerError: ranks do not answer, and the wait is longer than
                ``HOROVOD_STALL_SHUTDOWN_TIME_SECONDS``.
        """
        waited = time.monotonic() - self._began
        if waited < self._next_beat:
            return
        marks, limits = job_marks(), _limits()
        assert marks is not None  # otherwise the beat is infinite
        self._next_beat = waited + limits.beat
        marks.renew()
        if waited < (limits.error if self._warned else limits.warning):
            return
        missing = marks.wait_for_renewals(3 * limits.beat, self._ranks, self._over)
        if missing and waited >= limits.error:
            marks.answer()
            raise PeerError(
                f"{ranks_text(missing)} not answer for {waited:.0f} s (stopped, or busy for longer): "
                f"see the output there, or set {_SHUTDOWN} above {limits.error:g} s"
            )
        if missing:
            _log.warning(
                "gradcomp: %s not answer for %.0f s (stopped, or busy for longer): see the output "
                "there; %s is %g s",
                ranks_text(missing),
                waited,
                _CHECK,
                limits.warning,
            )
        self._warned = True
