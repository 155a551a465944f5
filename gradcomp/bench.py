"""How fast a spec encodes and decodes here, beside a memory copy of the same input."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.arrays import FloatArray
from gradcomp.codec import get_codec
from gradcomp.config import VERSION, Compress, Config, Match, Rule
from gradcomp.errors import GradcompError
from gradcomp.pipeline import Pipeline
from gradcomp.spec import parse

__all__ = ["BenchResult", "Timing", "measure", "relative_error"]

_SAMPLE_SECONDS = 1e-3  # calls are repeated for at least so long, or the clock would be too coarse


@dataclass(frozen=True)
class Timing:
    """The time of one operation, over all repeats.

    Attributes:
        operation: ``memcpy``; ``encode``, or for a spec with a memory
            ``compensate+encode+update`` as `gradcomp.pipeline` runs it, which also allocates the
            bytes it sends; ``decode``; ``decode_add``.
        ns_per_element: median, in nanoseconds per element of the gradient.
        ns_iqr: interquartile range of the same.
        gb_per_s: 10^9 bytes of the float32 gradient per second, at the median.
        speed_to_memcpy: speed as a multiple of a memory copy of the gradient: median over the
            repeats of the copy's time divided by the operation's in the same repeat.
    """

    operation: str
    ns_per_element: float
    ns_iqr: float
    gb_per_s: float
    speed_to_memcpy: float


@dataclass(frozen=True)
class BenchResult:
    """What `measure` found.

    Attributes:
        spec: the canonical spec.
        simd: the instruction set in use.
        wire_bytes: bytes handed to the collective, headers included.
        bits_per_element: the same, per element.
        vnmse: ||x - decode(encode(x))||^2 / ||x||^2.
    """

    spec: str
    numel: int
    repeats: int
    simd: str
    threads: int
    wire_bytes: int
    bits_per_element: float
    vnmse: float
    timings: tuple[Timing, ...]


def relative_error(spec: str, x: FloatArray) -> float:
    """vNMSE: ||x - decode(encode(x))||^2 / ||x||^2, of the codec alone."""
    codec = get_codec(parse(spec).codec)
    error = np.subtract(x, codec.decode(codec.encode(x)), dtype=np.float64)
    return float(np.dot(error, error) / np.dot(x.astype(np.float64), x))


def measure(spec: str, numel: int, repeats: int = 20, seed: int = 0) -> BenchResult:
    """Time a spec on ``numel`` standard normal elements drawn from ``seed``.

    Raises:
        SpecError: the spec is wrong.
        GradcompError: ``numel`` or ``repeats`` is below 1, or ``numel`` above what a codec takes.
    """
    for name, value in (("numel", numel), ("repeats", repeats)):
        if value < 1:
            raise GradcompError(f"{name} is {value}; it must be at least 1")
    parsed = parse(spec)
    codec = get_codec(parsed.codec)
    buffer = np.empty(codec.max_encoded_size(numel), np.uint8)
    x = np.random.default_rng(seed).standard_normal(numel, np.float32)
    y = np.zeros_like(x)
    frame = codec.encode(x).copy()
    # A rule without conditions: the default rules would send a flat gradient uncompressed.
    everything = Rule(match=Match(), use=parsed)
    config = Config(version=VERSION, compress=Compress(default=parsed, rules=(everything,)))
    pipeline = Pipeline(config)

    operations: dict[str, Callable[[], object]] = {"memcpy": lambda: np.copyto(y, x)}
    if parsed.stateful:
        # A round does all of this before its first request.
        operations["compensate+encode+update"] = lambda: next(pipeline.round("x", x))
    else:
        operations["encode"] = lambda: codec.encode(x, out=buffer)
    operations["decode"] = lambda: codec.decode(frame, y)
    operations["decode_add"] = lambda: codec.decode_add(frame, y)
    seconds = _interleave(operations, repeats)

    wire_bytes = next(Pipeline(config).round("x", x)).nbytes
    return BenchResult(
        spec=parsed.canonical,
        numel=numel,
        repeats=repeats,
        simd=_core.simd_level(),
        threads=_core.thread_count(),
        wire_bytes=wire_bytes,
        bits_per_element=8 * wire_bytes / numel,
        vnmse=relative_error(spec, x),
        timings=tuple(_timing(name, seconds, numel) for name in operations),
    )


def _interleave(
    operations: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, npt.NDArray[np.float64]]:
    """Seconds per call, [repeats] for each operation.

    Every repeat runs each operation in turn, so that a drift of the machine's speed touches all.
    """
    calls = {}
    for name, operation in operations.items():
        operation()  # warm: pages, caches, scratch memory
        calls[name] = 1 + int(_SAMPLE_SECONDS / _seconds_per_call(operation, 1))
    seconds = {name: np.empty(repeats) for name in operations}
    for repeat in range(repeats):
        for name, operation in operations.items():
            seconds[name][repeat] = _seconds_per_call(operation, calls[name])
    return seconds


def _seconds_per_call(operation: Callable[[], object], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        operation()
    return (time.perf_counter() - began) / calls


def _timing(operation: str, seconds: Mapping[str, npt.NDArray[np.float64]], numel: int) -> Timing:
    low, median, high = np.percentile(seconds[operation], [25, 50, 75])
    return Timing(
        operation=operation,
        ns_per_element=float(1e9 * median / numel),
        ns_iqr=float(1e9 * (high - low) / numel),
        gb_per_s=float(4e-9 * numel / median),
        speed_to_memcpy=float(np.median(seconds["memcpy"] / seconds[operation])),
    )
