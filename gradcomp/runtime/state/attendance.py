"""A wait for ranks that may never come: a line names them, so that a script can be corrected."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["attended"]

_log = logging.getLogger(__name__)

SECONDS = 5.0
"""Wait until the line: ranks that have ended a step together seldom need longer for the same call."""


@contextmanager
def attended(call: str, absent: Callable[[], str]) -> Iterator[None]:
    """A context for the wait until all ranks are in ``call``; logs a warning if it takes `SECONDS`.

    The wait goes on, as ranks may only be late.

    Args:
        call: the function that every rank must call, such as "save()".
        absent: the ranks that have not called it, such as "rank 1 does" (not), looked up in another
            thread; empty if all have.
    """

    def warn() -> None:
        others = absent()
        if not others:
            return  # they have come by now
        _log.warning(
            "gradcomp: this rank waits in %s for %g s: every rank must call it, between the same two "
            "steps, and %s not",
            call,
            SECONDS,
            others,
        )

    timer = threading.Timer(SECONDS, warn)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
