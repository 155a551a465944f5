"""Processors of this host, and the core's threads in a job."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gradcomp import _core

__all__ = ["processors", "threads", "use_processors"]

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""A container's limit of processor time, and the period of the limit, in microseconds."""

_MOST = 8
"""Threads of a rank at most: a choice, which leaves processors to loaders of data."""


def processors() -> int:
    """Number of processors that this process may use, at least 1: its affinity, and its container's limit."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no limit: no file, or the word "max"
        quota, period = _QUOTA.read_text("ascii").split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


def use_processors(ranks: int) -> None:
    """Give the core a rank's share of the processors as threads, from 1 to 8.

    ``GRADCOMP_THREADS`` takes precedence. Frames and sums are the same at any number of threads.

    Args:
        ranks: number of ranks on this host, at least 1.
    """
    if not os.environ.get("GRADCOMP_THREADS"):
        _core.set_thread_count(max(1, min(processors() // ranks, _MOST)))


def threads() -> int:
    """Number of threads of the core: after `use_processors` a rank's share, or ``GRADCOMP_THREADS``."""
    return _core.thread_count()
