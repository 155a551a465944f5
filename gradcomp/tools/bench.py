"""Speed, size and error of one spec on normal values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.codec import get_codec
from gradcomp.codec.spec import parse
from gradcomp.config.match import Match
from gradcomp.config.schema import VERSION, Compress, Config, Rule
from gradcomp.config.spec_schedule import SpecSchedule
from gradcomp.errors import GradcompError
from gradcomp.exchange.rounds import advance
from gradcomp.runtime.pipeline import Pipeline
from gradcomp.tools.timing import Timing, thread_counts, time_operations

__all__ = ["BenchResult", "measure", "relative_error", "vnmse"]


@dataclass(frozen=True)
class BenchResult:
    """The result of `measure`.

    Attributes:
        spec: the canonical spec.
        simd: the instruction set in use.
        wire_bytes: bytes handed to the collective, headers included.
        bits_per_element: the same, per element.
        vnmse: ||x - decode(encode(x))||^2 / ||x||^2.
        timings: ``memcpy`` first, then each operation at each number of threads.
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


def measure(
    spec: str, numel: int, repeats: int = 20, seed: int = 0, threads: Sequence[int] = ()
) -> BenchResult:
    """Time a spec on ``numel`` standard normal elements drawn from ``seed``.

    Args:
        threads: numbers of threads to measure with; by default the present one.

    Raises:
        SpecError: the spec is wrong.
        GradcompError: ``numel``, ``repeats`` or one of ``threads`` is below 1, or ``numel`` or
            ``threads`` above the limit of the core.
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
        # A round does all three before its first request.
        operations["compensate+encode+update"] = lambda: next(pipeline.round("x", x))
    else:
        operations["encode"] = lambda: codec.encode(x, out=buffer)
    operations["decode"] = lambda: codec.decode(frame, y)
    operations["decode_add"] = lambda: codec.decode_add(frame, y)
    with thread_counts(threads) as counts:
        timings = time_operations(operations, x, repeats, counts, _core.set_thread_count)

    wire_bytes = advance(Pipeline(config).round("x", x), None).nbytes
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
