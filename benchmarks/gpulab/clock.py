"""Times of work on a device, and of the host while it launches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

__all__ = ["Clock", "CudaClock", "Work"]

Work = Callable[[], object]


class Clock(Protocol):
    """Medians of many repetitions, in milliseconds.

    Attributes:
        device: on which work runs.
    """

    device: torch.device

    def launched(self, works: Sequence[Work]) -> float:
        """One of the works, as a program launches it; they take turns."""
        ...

    def in_graph(self, works: Sequence[Work]) -> float:
        """One of the works, which take turns in a CUDA graph."""
        ...

    def host(self, work: Work, after: Work = lambda: None) -> float:
        """Time on the host until the call returns; ``after`` runs outside the time."""
        ...

    def synchronize(self) -> None:
        """Wait for all that was launched."""
        ...


class CudaClock:
    """Triton's benchmarks, with CUDA events, for the device; the system's clock for the host."""

    REPEATS = 50

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def launched(self, works: Sequence[Work]) -> float:
        """See `Clock`; the cache is overwritten before each repetition."""
        from triton.testing import do_bench

        return float(do_bench(lambda: _all(works), return_mode="median")) / len(works)

    def in_graph(self, works: Sequence[Work]) -> float:
        """See `Clock`."""
        from triton.testing import do_bench_cudagraph

        return float(do_bench_cudagraph(lambda: _all(works), return_mode="median")) / len(works)

    def host(self, work: Work, after: Work = lambda: None) -> float:
        """See `Clock`; the device is idle when the time begins."""
        times = []
        for number in range(self.REPEATS + 3):
            self.synchronize()
            begin = time.perf_counter()
            work()
            times.append(1e3 * (time.perf_counter() - begin))
            after()
            if number == 2:  # kernels are compiled and memory is there
                times.clear()
        return statistics.median(times)

    def synchronize(self) -> None:
        """See `Clock`."""
        torch.cuda.synchronize(self.device)


def _all(works: Sequence[Work]) -> None:
    for work in works:
        work()
