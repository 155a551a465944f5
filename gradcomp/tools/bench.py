"""How fast a spec encodes and decodes here, beside a memory copy of the same input."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.codec import get_codec
from gradcomp.codec.spec import parse
from gradcomp.config.schema import VERSION, Compress, Config, Match, Rule
from gradcomp.config.spec_schedule import SpecSchedule
from gradcomp.errors import GradcompError
from gradcomp.runtime.pipeline import Pipeline

__all__ = [
    "BenchResult",
    "Timing",
    "measure",
    "relative_error",
    "thread_counts",
    "time_operations",
    "vnmse",
]

_Seconds = npt.NDArray[np.float64]  # per call, [repeats]

_SAMPLE_SECONDS = 1e-3  # calls are repeated for at least so long, or the clock would be too coarse


@dataclass(frozen=True)
class Timing:
    """The time of one operation, over all repeats.

    Attributes:
        operation: ``memcpy``; ``encode``, or for a spec with a memory
            ``compensate+encode+update`` as `gradcomp.runtime.pipeline` runs it, which also allocates the
            bytes it sends; ``decode``; ``decode_add``.
        threads: how many the operation was given; ``memcpy`` always has one.
        ns_per_element: median, in nanoseconds per element of the gradient.
        ns_iqr: interquartile range of the same.
        gb_per_s: 10^9 bytes of the float32 gradient per second, at the median.
        speed_to_memcpy: speed as a multiple of a memory copy of the gradient: median over the
            repeats of the copy's time divided by the operation's in the same repeat.
        scaling: speed as a multiple of the same operation's with the first number of threads that
            was asked for, likewise.
    """

    operation: str
    threads: int
    ns_per_element: float
    ns_iqr: float
    gb_per_s: float
    speed_to_memcpy: float
    scaling: float


@dataclass(frozen=True)
class BenchResult:
    """What `measure` found.

    Attributes:
        spec: the canonical spec.
        simd: the instruction set in use.
        wire_bytes: bytes handed to the collective, headers included.
        bits_per_element: the same, per element.
        vnmse: ||x - decode(encode(x))||^2 / ||x||^2.
        timings: of ``memcpy``, then of each operation at each number of threads.
    """

    spec: str
    numel: int
    repeats: int
    simd: str
    threads: tuple[int, ...]
    wire_bytes: int
    bits_per_element: float
    vnmse: float
    timings: tuple[Timing, ...]


def vnmse(x: FloatArray, decoded: FloatArray) -> float:
    """||x - decoded||^2 / ||x||^2, of flat arrays."""
    error = np.subtract(x, decoded, dtype=np.float64)
    return float(np.dot(error, error) / np.dot(x.astype(np.float64), x))


def relative_error(spec: str, x: FloatArray) -> float:
    """vNMSE of the codec alone."""
    codec = get_codec(parse(spec).first_codec)
    return vnmse(x, codec.decode(codec.encode(x)))


@contextmanager
def thread_counts(asked: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The numbers of threads to measure with: those ``asked``, or the one that is set now.

    What is set now is set again at the end.

    Raises:
        GradcompError: the core cannot use so many threads.
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


def measure(
    spec: str, numel: int, repeats: int = 20, seed: int = 0, threads: Sequence[int] = ()
) -> BenchResult:
    """Time a spec on ``numel`` standard normal elements drawn from ``seed``.

    Args:
        threads: numbers of threads to measure with; by default the one that is set.

    Raises:
        SpecError: the spec is wrong.
        GradcompError: ``numel``, ``repeats`` or one of ``threads`` is below 1, or ``numel`` or
            ``threads`` above what a codec takes.
    """
    for name, value in (("numel", numel), ("repeats", repeats)):
        if value < 1:
            raise GradcompError(f"{name} is {value}; it must be at least 1")
    parsed = parse(spec).at(0, 0)
    codec = get_codec(parsed.codec)
    buffer = np.empty(codec.max_encoded_size(numel), np.uint8)
    x = np.random.default_rng(seed).standard_normal(numel, np.float32)
    y = np.zeros_like(x)
    frame = codec.encode(x).copy()
    # A rule without conditions: the default rules would send a flat gradient uncompressed.
    everything = Rule(match=Match(), use=SpecSchedule.of(parsed))
    compress = Compress(default=everything.use, rules=(everything,))
    config = Config(version=VERSION, compress=compress)
    pipeline = Pipeline(config)

    operations: dict[str, Callable[[], object]] = {}
    if parsed.stateful:
        # A round does all of this before its first request.
        operations["compensate+encode+update"] = lambda: next(pipeline.round("x", x))
    else:
        operations["encode"] = lambda: codec.encode(x, out=buffer)
    operations["decode"] = lambda: codec.decode(frame, y)
    operations["decode_add"] = lambda: codec.decode_add(frame, y)
    with thread_counts(threads) as counts:
        timings = time_operations(operations, x, repeats, counts, _core.set_thread_count)

    wire_bytes = next(Pipeline(config).round("x", x)).nbytes
    return BenchResult(
        spec=parsed.canonical,
        numel=numel,
        repeats=repeats,
        simd=_core.simd_level(),
        threads=counts,
        wire_bytes=wire_bytes,
        bits_per_element=8 * wire_bytes / numel,
        vnmse=relative_error(spec, x),
        timings=timings,
    )


def time_operations(
    operations: Mapping[str, Callable[[], object]],
    x: FloatArray,
    repeats: int,
    threads: Sequence[int],
    set_threads: Callable[[int], None],
) -> tuple[Timing, ...]:
    """Time operations on the gradient ``x`` with each number of ``threads``, and a copy of ``x``.

    Every repeat runs all of them in turn, so that a drift of the machine's speed touches all.
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

    def timing(name: str, count: int, own: _Seconds, first: _Seconds) -> Timing:
        low, median, high = np.percentile(own, [25, 50, 75])
        return Timing(
            operation=name,
            threads=count,
            ns_per_element=float(1e9 * median / x.size),
            ns_iqr=float(1e9 * (high - low) / x.size),
            gb_per_s=float(4e-9 * x.size / median),
            speed_to_memcpy=float(np.median(memcpy / own)),
            scaling=float(np.median(first / own)),
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
