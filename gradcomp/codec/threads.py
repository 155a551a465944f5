"""The core's threads in a job."""

from __future__ import annotations

import os

from gradcomp import _core
from gradcomp.processors import processors

__all__ = ["threads", "use_processors"]

_MOST = 8
"""Threads of a rank at most: a choice, which leaves processors to loaders of data."""


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
