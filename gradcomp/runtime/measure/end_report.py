"""The message of a job at its end: what a rank has sent, and where its time went."""

from __future__ import annotations

import logging
import os
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Protocol

__all__ = ["log_at_end"]

_log = logging.getLogger(__name__)

_FEWEST = 10
"""Steps from which a job is worth a message: scripts may make a compression for a single average."""


class _Totals(Protocol):
    """`gradcomp.runtime.measure.stats.Stats` has them."""

    inner_steps: int
    compression_seconds: float
    waiting_seconds: float
    faults: Counter[str]

    @property
    def behind(self) -> list[str]: ...

    @property
    def job_steps(self) -> int: ...

    @property
    def seconds(self) -> float | None: ...


def log_at_end(owner: object, read: Callable[[], _Totals]) -> None:
    """Log the text of statistics once: when ``owner`` is freed, or when the process ends.

    Args:
        owner: lives as long as the compression is used.
        read: returns the statistics; it must not refer to ``owner``.
    """
    weakref.finalize(owner, _log_end, read, os.getpid())


def _log_end(read: Callable[[], _Totals], process: int) -> None:
    if os.getpid() != process:  # a fork of the rank
        return
    stats = read()
    if stats.job_steps >= _FEWEST:
        _log.info("gradcomp: %s%s; %s%s", stats, _times(stats), _faults(stats), _behind(stats))


def _times(stats: _Totals) -> str:
    """Empty where nothing has measured the time."""
    text = f"; from the first to the last step {stats.seconds:.1f} s" if stats.seconds else ""
    if not stats.compression_seconds:
        return text
    a_step = 1000 / (stats.job_steps * stats.inner_steps)
    return (
        f"{text}, in a step {a_step * stats.compression_seconds:,.2f} ms of compression and "
        f"{a_step * stats.waiting_seconds:,.2f} ms of waiting for other ranks"
    )


def _behind(stats: _Totals) -> str:
    """Empty where error feedback keeps up."""
    specs = ", ".join(f"'{spec}'" for spec in stats.behind)
    return f"; error feedback falls behind: {specs}" if specs else ""


def _faults(stats: _Totals) -> str:
    if not stats.faults:
        return "no faults"
    return "faults: " + ", ".join(f"{count} {name}" for name, count in stats.faults.items())
