"""A survey of all codecs and baselines: size, error and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.codec import get_codec
from gradcomp.codec.spec import stages
from gradcomp.errors import GradcompError
from gradcomp.tools.baselines import Baseline
from gradcomp.tools.bench import measure, relative_error, vnmse
from gradcomp.tools.timing import Timing, thread_counts, time_operations

__all__ = [
    "BaselineComparison",
    "SurveyRow",
    "compare_with_baselines",
    "load_gradients",
    "survey",
    "survey_specs",
]

_ERROR_NUMEL = 1 << 20
"""Elements for measuring errors: enough for three digits."""

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator], FloatArray]] = {
    "gauss": lambda random: random.standard_normal(_ERROR_NUMEL, np.float32),
    "laplace": lambda random: random.laplace(size=_ERROR_NUMEL).astype(np.float32),
}


@dataclass(frozen=True)
class SurveyRow:
    """One spec, or one compressor of another library.

    Attributes:
        spec: the canonical spec, or the name of the baseline.
        baseline: whether it is a baseline.
        codec: the codec's name; for a baseline our codec with the same method, if there is one.
        bits_per_element: on the wire, headers included, for standard normal input.
        vnmse: relative squared error by input.
        timings: as from `gradcomp.tools.bench.measure`; baselines have no ``decode_add``.
    """

    spec: str
    baseline: bool
    codec: str | None
    bits_per_element: float
    vnmse: dict[str, float]
    timings: tuple[Timing, ...]

    @property
    def threads(self) -> tuple[int, ...]:
        """The numbers of threads of its timings."""
        return tuple(timing.threads for timing in self.timings if timing.operation == "encode")

    def timing(self, operation: str, threads: int) -> Timing | None:
        """The timing of an operation; None where there is none."""
        for timing in self.timings:
            if (timing.operation, timing.threads) == (operation, threads):
                return timing
        return None


@dataclass(frozen=True)
class BaselineComparison:
    """Our codec, compared with a baseline of the same method, with the same number of threads.

    Attributes:
        encode, decode: our speed as a multiple of the baseline's. Each is first divided by the speed
            of the memory copy next to it, so that a drift of the machine's speed cancels.
    """

    spec: str
    baseline: str
    threads: int
    encode: float
    decode: float


def survey_specs() -> list[str]:
    """The example of every registered codec."""
    return [stage.example for stage in stages() if stage.kind == "codec"]


def load_gradients(paths: Sequence[Path]) -> dict[str, FloatArray]:
    """Recorded gradients by the stem of their file: all arrays of each .npz, one after the other.

    Raises:
        GradcompError: a file holds no gradients, or two inputs have the same name.
    """
    gradients: dict[str, FloatArray] = {}
    for path in paths:
        if path.stem in gradients or path.stem in DISTRIBUTIONS:
            raise GradcompError(
                f"{path}: there is a column {path.stem!r} already; rename the file, as columns "
                "are named after files"
            )
        gradients[path.stem] = _load_gradient(path)
    return gradients


def _load_gradient(path: Path) -> FloatArray:
    try:
        with np.load(path) as arrays:
            parts = [arrays[name].astype(np.float32).reshape(-1) for name in arrays.files]
    except (OSError, ValueError) as error:
        raise GradcompError(f"{path} is no .npz file of gradients: {error}") from error
    gradient = np.concatenate(parts) if parts else np.empty(0, np.float32)
    if not np.any(gradient):
        raise GradcompError(f"{path} holds no gradient other than zero")
    return gradient


def survey(
    specs: Sequence[str],
    baselines: Sequence[Baseline],
    numel: int,
    repeats: int,
    recorded: Mapping[str, FloatArray],
    threads: Sequence[int] = (),
) -> Iterator[SurveyRow]:
    """Measure all specs, then the baselines.

    Args:
        numel: elements for sizes and speeds.
        recorded: flat recorded gradients, for further errors.
        threads: numbers of threads to measure speeds with; by default the present one.
    """
    random = np.random.default_rng(0)
    inputs = {name: draw(random) for name, draw in DISTRIBUTIONS.items()} | dict(recorded)
    for spec in specs:
        result = measure(spec, numel, repeats, threads=threads)
        yield SurveyRow(
            spec=result.spec,
            baseline=False,
            codec=get_codec(spec).name,
            bits_per_element=result.bits_per_element,
            vnmse={name: relative_error(spec, x) for name, x in inputs.items()},
            timings=result.timings,
        )
    for baseline in baselines:
        yield _measure_baseline(baseline, numel, repeats, inputs, threads)


def _measure_baseline(
    baseline: Baseline,
    numel: int,
    repeats: int,
    inputs: Mapping[str, FloatArray],
    threads: Sequence[int],
) -> SurveyRow:
    x = np.random.default_rng(0).standard_normal(numel, np.float32)
    with thread_counts(threads) as counts:
        baseline.set_threads(counts[0])
        message = baseline.encode(x)
        operations: dict[str, Callable[[], object]] = {
            "encode": lambda: baseline.encode(x),
            "decode": lambda: baseline.decode(message, numel),
        }
        return SurveyRow(
            spec=baseline.name,
            baseline=True,
            codec=baseline.codec,
            bits_per_element=8 * sum(part.nbytes for part in message) / numel,
            vnmse={
                name: vnmse(x, baseline.decode(baseline.encode(x), x.size))
                for name, x in inputs.items()
            },
            timings=time_operations(operations, x, repeats, counts, baseline.set_threads),
        )


def compare_with_baselines(rows: Sequence[SurveyRow]) -> list[BaselineComparison]:
    """Each baseline with our codec of the same method, where there is one."""
    return [
        BaselineComparison(
            spec=row.spec,
            baseline=other.spec,
            threads=threads,
            encode=_multiple(row, other, "encode", threads),
            decode=_multiple(row, other, "decode", threads),
        )
        for other in rows
        for row in rows
        if other.baseline and not row.baseline and row.codec == other.codec
        for threads in row.threads
    ]


def _multiple(row: SurveyRow, other: SurveyRow, operation: str, threads: int) -> float:
    ours, theirs = row.timing(operation, threads), other.timing(operation, threads)
    assert ours is not None
    assert theirs is not None
    return ours.speed_to_memcpy / theirs.speed_to_memcpy
