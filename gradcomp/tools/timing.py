"""Timing of operations on a gradient, next to a memory copy, with several numbers of threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.errors import GradcompError

__all__ = ["Timing", "thread_counts", "time_operations"]

_Seconds = npt.NDArray[np.float64]  # per call, [repeats]

_SAMPLE_SECONDS = 1e-3
"""Least time of a sample: shorter calls are repeated, as the clock is too coarse for them."""


@dataclass(frozen=True)
class Timing:
    """The time of one operation, over all repeats.

    Attributes:
        operation: ``memcpy``, ``encode``, ``decode`` or ``decode_add``. A spec with a memory has
            ``compensate+encode+update`` instead of ``encode``, as `gradcomp.runtime.pipeline` runs
            it, with the allocation of the bytes it sends.
        threads: threads of the operation; ``memcpy`` always has one.
        ns_per_element: median, in nanoseconds per element of the gradient.
        ns_iqr: interquartile range of the same.
        gb_per_s: 10^9 bytes of the float32 gradient per second, at the median.
        speed_to_memcpy: speed as a multiple of a memory copy of the gradient: median over the
            repeats of the copy's time divided by the operation's in the same repeat.
        scaling: speed as a multiple of the same operation's speed with the first number of threads,
            likewise a median over the repeats.
    """

    operation: str
    threads: int
    ns_per_element: float
    ns_iqr: float
    gb_per_s: float
    speed_to_memcpy: float
    scaling: float


@contextmanager
def thread_counts(asked: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The distinct numbers of threads in ``asked``, or else the present one.

    At the end the present number is set again.

    Raises:
        GradcompError: the core cannot use this many threads.
    """
    before = _core.thread_count()
    try:
        for count in asked:
            if count < 1:
                raise GradcompError(f"threads is {count}; it must be at least 1")
            _core.set_thread_count(count)
            if count > _core.thread_count():
                raise GradcompError(
                    f"threads is {count}; it must be at most {_core.thread_count()}"
                )
        yield tuple(dict.fromkeys(asked)) or (before,)
    finally:
        _core.set_thread_count(before)


def time_operations(
    operations: Mapping[str, Callable[[], object]],
    x: FloatArray,
    repeats: int,
    threads: Sequence[int],
    set_threads: Callable[[int], None],
) -> tuple[Timing, ...]:
    """Time operations on the gradient ``x`` with each number of ``threads``, and a copy of ``x``.

    Every repeat runs all of them in turn, so that a drift of the machine's speed affects all.
    """
    y = np.zeros_like(x)

    def copy() -> None:
        np.copyto(y, x)

    keys = [(name, count) for count in threads for name in operations]
    calls = {}
    for name, count in keys:
        set_threads(count)
        calls[name, count] = _calls_per_sample(operations[name])
    copies = _calls_per_sample(copy)
    memcpy = np.empty(repeats)
    seconds = {key: np.empty(repeats) for key in keys}
    for repeat in range(repeats):
        memcpy[repeat] = _seconds_per_call(copy, copies)
        for name, count in keys:
            set_threads(count)
            seconds[name, count][repeat] = _seconds_per_call(operations[name], calls[name, count])

    def timing(name: str, count: int, laps: _Seconds, first: _Seconds) -> Timing:
        low, median, high = np.percentile(laps, [25, 50, 75])
        return Timing(
            operation=name,
            threads=count,
            ns_per_element=float(1e9 * median / x.size),
            ns_iqr=float(1e9 * (high - low) / x.size),
            gb_per_s=float(4e-9 * x.size / median),
            speed_to_memcpy=float(np.median(memcpy / laps)),
            scaling=float(np.median(first / laps)),
        )

    return (
        timing("memcpy", 1, memcpy, memcpy),
        *(
            timing(name, count, seconds[name, count], seconds[name, threads[0]])
            for name, count in keys
        ),
    )


def _calls_per_sample(operation: Callable[[], object]) -> int:
    operation()  # warm: pages, caches, scratch memory
    return 1 + int(_SAMPLE_SECONDS / _seconds_per_call(operation, 1))


def _seconds_per_call(operation: Callable[[], object], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        operation()
    return (time.perf_counter() - began) / calls
