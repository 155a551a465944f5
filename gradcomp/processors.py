"""Processors of this host.

Only the standard library is imported, as byteps_compressors.supervise uses it for each process of a job.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["processors"]

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""A container's limit of processor time, and the period of the limit, in microseconds."""


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
