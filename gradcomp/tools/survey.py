"""All codecs side by side: size, error and speed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.codec import get_codec
from gradcomp.codec.spec import stages
from gradcomp.errors import GradcompError
from gradcomp.tools.baselines import Baseline
from gradcomp.tools.bench import (
    Timing,
    measure,
    relative_error,
    thread_counts,
    time_operations,
    vnmse,
)
from gradcomp.tools.plotting import new_figure

__all__ = [
    "PeerComparison",
    "SurveyRow",
    "compare_with_peers",
    "load_gradients",
    "plot",
    "survey",
    "survey_specs",
]

_ERROR_NUMEL = 1 << 20
"""Elements on which errors are measured: enough for three digits."""

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator], FloatArray]] = {
    "gauss": lambda random: random.standard_normal(_ERROR_NUMEL, np.float32),
    "laplace": lambda random: random.laplace(size=_ERROR_NUMEL).astype(np.float32),
}


@dataclass(frozen=True)
class SurveyRow:
    """One spec, or one compressor of another library.

    Attributes:
        spec: the canonical spec, or the peer's name.
        peer: whether it is a peer's.
        codec: the codec's name; for a peer that of our codec that does the same, if there is one.
        bits_per_element: on the wire, headers included, for standard normal input.
        vnmse: relative squared error by input.
        timings: as `gradcomp.tools.bench.measure` finds them; peers have no ``decode_add``.
    """

    spec: str
    peer: bool
    codec: str | None
    bits_per_element: float
    vnmse: dict[str, float]
    timings: tuple[Timing, ...]

    @property
    def threads(self) -> tuple[int, ...]:
        """The numbers of threads that it was measured with."""
        return tuple(timing.threads for timing in self.timings if timing.operation == "encode")

    def timing(self, operation: str, threads: int) -> Timing | None:
        """One of the timings."""
        for timing in self.timings:
            if (timing.operation, timing.threads) == (operation, threads):
                return timing
        return None


@dataclass(frozen=True)
class PeerComparison:
    """Our codec beside a peer that does the same, with the same number of threads.

    Attributes:
        encode, decode: our speed as a multiple of the peer's. Both are taken as multiples of the
            memory copy beside them, so that a drift of the machine's speed cancels.
    """

    spec: str
    peer: str
    threads: int
    encode: float
    decode: float


def survey_specs() -> list[str]:
    """The example of every registered codec."""
    return [stage.example for stage in stages() if stage.kind == "codec"]


def load_gradients(paths: Sequence[Path]) -> dict[str, FloatArray]:
    """Recorded gradients by the stem of their file: all arrays of each .npz, one after the other.

    Raises:
        GradcompError: a file is not one, or two inputs have the same name.
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
    peers: Sequence[Baseline],
    numel: int,
    repeats: int,
    recorded: Mapping[str, FloatArray],
    threads: Sequence[int] = (),
) -> Iterator[SurveyRow]:
    """Measure one spec after the other, then the peers.

    Args:
        numel: elements for sizes and speeds.
        recorded: real gradients to measure errors on too, flat.
        threads: numbers of threads to measure speeds with; by default the one that is set.
    """
    random = np.random.default_rng(0)
    inputs = {name: draw(random) for name, draw in DISTRIBUTIONS.items()} | dict(recorded)
    for spec in specs:
        result = measure(spec, numel, repeats, threads=threads)
        yield SurveyRow(
            spec=result.spec,
            peer=False,
            codec=get_codec(spec).name,
            bits_per_element=result.bits_per_element,
            vnmse={name: relative_error(spec, x) for name, x in inputs.items()},
            timings=result.timings,
        )
    for peer in peers:
        yield _measure_peer(peer, numel, repeats, inputs, threads)


def _measure_peer(
    peer: Baseline,
    numel: int,
    repeats: int,
    inputs: Mapping[str, FloatArray],
    threads: Sequence[int],
) -> SurveyRow:
    x = np.random.default_rng(0).standard_normal(numel, np.float32)
    with thread_counts(threads) as counts:
        peer.set_threads(counts[0])
        message = peer.encode(x)
        operations: dict[str, Callable[[], object]] = {
            "encode": lambda: peer.encode(x),
            "decode": lambda: peer.decode(message, numel),
        }
        return SurveyRow(
            spec=peer.name,
            peer=True,
            codec=peer.codec,
            bits_per_element=8 * sum(part.nbytes for part in message) / numel,
            vnmse={
                name: vnmse(x, peer.decode(peer.encode(x), x.size)) for name, x in inputs.items()
            },
            timings=time_operations(operations, x, repeats, counts, peer.set_threads),
        )


def compare_with_peers(rows: Sequence[SurveyRow]) -> list[PeerComparison]:
    """Every peer beside our codec that does the same, where there is one."""
    return [
        PeerComparison(
            spec=row.spec,
            peer=peer.spec,
            threads=threads,
            encode=_multiple(row, peer, "encode", threads),
            decode=_multiple(row, peer, "decode", threads),
        )
        for peer in rows
        for row in rows
        if peer.peer and not row.peer and row.codec == peer.codec
        for threads in row.threads
    ]


def _multiple(row: SurveyRow, peer: SurveyRow, operation: str, threads: int) -> float:
    ours, theirs = row.timing(operation, threads), peer.timing(operation, threads)
    assert ours is not None
    assert theirs is not None
    return ours.speed_to_memcpy / theirs.speed_to_memcpy


def _name(row: SurveyRow) -> str:
    """Without parameters, which a picture has no room for."""
    return re.sub(r"\([^)]*\)", "", row.spec)


def plot(rows: Sequence[SurveyRow], path: Path) -> None:
    """Draw rate against distortion, and speeds as multiples of memcpy, as one PNG.

    Raises:
        GradcompError: matplotlib is not installed.
    """
    figure = new_figure(13, 0.32 * len(rows) + 3)
    scatter, bars = figure.subplots(1, 2)
    for peer, marker, colour in ((False, "o", "tab:blue"), (True, "s", "tab:red")):
        lossy = [row for row in rows if row.peer == peer and row.vnmse["gauss"] > 0]
        if lossy:
            scatter.loglog(
                [row.bits_per_element for row in lossy],
                [row.vnmse["gauss"] for row in lossy],
                marker,
                color=colour,
                label="peers" if peer else "codecs",
            )
    for row in rows:
        if row.vnmse["gauss"] > 0:
            scatter.annotate(
                _name(row),
                (row.bits_per_element, row.vnmse["gauss"]),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=8,
            )
    rates = np.array([row.bits_per_element for row in rows])
    errors = [row.vnmse["gauss"] for row in rows if row.vnmse["gauss"] > 0]
    bound = np.geomspace(max(rates.min(), 0.01), rates.max(), 200)
    scatter.loglog(bound, 2.0 ** (-2 * bound), "k--", label="Gaussian bound, 2^(-2R)")
    if errors:
        scatter.set_ylim(bottom=min(errors) / 3, top=max(3, 3 * max(errors)))
    scatter.set(xlabel="bits per element", ylabel="vNMSE, Gaussian", title="Rate and distortion")
    scatter.legend(loc="lower left")
    places = np.arange(len(rows))[::-1]
    threads = rows[0].threads[0]
    for offset, operation, colour in ((0.2, "encode", "tab:orange"), (-0.2, "decode", "tab:green")):
        timings = [row.timing(operation, threads) for row in rows]
        values = [timing.speed_to_memcpy if timing else 0.0 for timing in timings]
        bars.barh(places + offset, values, 0.4, color=colour, label=operation)
    bars.axvline(1, color="black", linewidth=1)
    bars.set_yticks(places, [_name(row) for row in rows], fontsize=9)
    for label, row in zip(bars.get_yticklabels(), rows, strict=True):
        label.set_color("tab:red" if row.peer else "black")
    bars.set(xscale="log", xlabel="speed, multiple of memcpy", title=f"Speed, {threads} thread(s)")
    bars.legend(loc="lower right")
    figure.savefig(path, dpi=110)
