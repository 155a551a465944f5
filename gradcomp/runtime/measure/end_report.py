"""The message of a job at its end: what a rank has sent, and where its time went."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable

from gradcomp.runtime.measure.stats import Stats

__all__ = ["log_at_end"]

_log = logging.getLogger(__name__)

_FEWEST = 10
"""Steps from which a job is worth a message: scripts may make a compression for a single average."""


def log_at_end(owner: object, read: Callable[[], Stats]) -> None:
    """Log the text of statistics once: when ``owner`` is freed, or when the process ends.

    Args:
        owner: lives as long as the compression is used.
        read: returns the statistics; it must not refer to ``owner``.
    """
    weakref.finalize(owner, _log_end, read, os.getpid())


def _log_end(read: Callable[[], Stats], process: int) -> None:
    if os.getpid() != process:  # a fork of the rank
        return
    stats = read()
    if stats.steps >= _FEWEST:
        _log.info("gradcomp: %s%s; %s", stats, _times(stats), _faults(stats))


def _times(stats: Stats) -> str:
    """Empty where nothing has measured the time."""
    text = f"; from the first to the last step {stats.seconds:.1f} s" if stats.seconds else ""
    if not stats.compression_seconds:
        return text
    a_step = 1000 / (stats.steps * stats.inner_steps)
    return (
        f"{text}, in a step {a_step * stats.compression_seconds:,.2f} ms of compression and "
        f"{a_step * stats.waiting_seconds:,.2f} ms of waiting for other ranks"
    )


def _faults(stats: Stats) -> str:
    if not stats.faults:
        return "no faults"
    return "faults: " + ", ".join(f"{count} {name}" for name, count in stats.faults.items())
