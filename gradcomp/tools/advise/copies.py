"""Speed of copies between gradients on this machine."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from threading import Barrier
from typing import Any

import numpy as np

__all__ = ["copying_library", "seconds_of_copy"]

_COPIES = 10
_LONGEST = 60.0
"""Seconds that a copy waits for the others: one of them may have ended without memory."""


def copying_library() -> str:
    """The library that makes the measured copies: "torch" where it is installed, else "numpy"."""
    return "numpy" if importlib.util.find_spec("torch") is None else "torch"


def seconds_of_copy(at_once: int = 1, nbytes: int = 1 << 26) -> float:
    """Seconds that a copy of one byte between gradients takes, beyond the caches.

    PyTorch makes the copies where it is installed. NumPy's take less time: they write past the caches,
    which read memory before they write it.

    Args:
        at_once: copies that share the memory's bandwidth: cores of a node on which ranks copy.
    """
    torch = _torch()
    together = Barrier(at_once, timeout=_LONGEST)

    def measure(_: int) -> float:
        source, target = np.ones(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
        copy = partial(np.copyto, target, source)
        if torch is not None:
            copy = partial(torch.from_numpy(target).copy_, torch.from_numpy(source))
        copy()
        times = []
        for _ in range(_COPIES):
            together.wait()
            began = time.perf_counter()
            copy()
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    with ThreadPoolExecutor(at_once) as threads, _one_thread_each(torch):
        return statistics.fmean(threads.map(measure, range(at_once))) / nbytes


def _torch() -> Any:
    with suppress(ImportError):
        return importlib.import_module("torch")
    return None


@contextmanager
def _one_thread_each(torch: Any) -> Iterator[None]:
    """A context in which PyTorch, if it is installed, uses one thread for each operation."""
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
