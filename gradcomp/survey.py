"""All codecs side by side: size, error and speed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradcomp.arrays import FloatArray
from gradcomp.bench import measure, relative_error
from gradcomp.errors import GradcompError
from gradcomp.spec import stages

__all__ = ["SurveyRow", "load_gradient", "plot", "survey", "survey_specs"]

_ERROR_NUMEL = 1 << 20
"""Elements on which errors are measured: enough for three digits."""

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator], FloatArray]] = {
    "gauss": lambda random: random.standard_normal(_ERROR_NUMEL, np.float32),
    "laplace": lambda random: random.laplace(size=_ERROR_NUMEL).astype(np.float32),
}


@dataclass(frozen=True)
class SurveyRow:
    """One spec.

    Attributes:
        bits_per_element: on the wire, headers included, for standard normal input.
        vnmse: relative squared error by input; ``recorded`` is there where a gradient was given.
        encode, decode, decode_add: 10^6 elements per second.
        encode_to_memcpy, decode_to_memcpy, decode_add_to_memcpy: speed as a multiple of a memory
            copy of the gradient in the same run.
    """

    spec: str
    bits_per_element: float
    vnmse: dict[str, float]
    encode: float
    decode: float
    decode_add: float
    encode_to_memcpy: float
    decode_to_memcpy: float
    decode_add_to_memcpy: float


def survey_specs() -> list[str]:
    """The example of every registered codec."""
    return [stage.example for stage in stages() if stage.kind == "codec"]


def load_gradient(path: Path) -> FloatArray:
    """A recorded gradient: all arrays of an .npz file, one after the other.

    Raises:
        GradcompError: the file is not one.
    """
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
    specs: Sequence[str], numel: int, repeats: int, recorded: FloatArray | None = None
) -> Iterator[SurveyRow]:
    """Measure one spec after the other.

    Args:
        numel: elements for sizes and speeds.
        recorded: a real gradient to measure errors on too, flat.
    """
    random = np.random.default_rng(0)
    inputs = {name: draw(random) for name, draw in DISTRIBUTIONS.items()}
    if recorded is not None:
        inputs["recorded"] = recorded
    for spec in specs:
        result = measure(spec, numel, repeats)
        by_name = {timing.operation: timing for timing in result.timings}
        speeds = {
            name: 1e3 / by_name[name].ns_per_element for name in ("encode", "decode", "decode_add")
        }
        ratios = {
            f"{name}_to_memcpy": by_name[name].speed_to_memcpy
            for name in ("encode", "decode", "decode_add")
        }
        yield SurveyRow(
            spec=result.spec,
            bits_per_element=result.bits_per_element,
            vnmse={name: relative_error(spec, x) for name, x in inputs.items()},
            **speeds,
            **ratios,
        )


def _name(row: SurveyRow) -> str:
    """The spec without parameters, which a picture has no room for."""
    return re.sub(r"\([^)]*\)", "", row.spec)


def plot(rows: Sequence[SurveyRow], path: Path) -> None:
    """Draw rate against distortion, and speeds as multiples of memcpy, as one PNG.

    Raises:
        GradcompError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise GradcompError("a plot needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(13, 0.32 * len(rows) + 3), layout="constrained")
    scatter, bars = figure.subplots(1, 2)
    rates = np.array([row.bits_per_element for row in rows])
    errors = np.array([row.vnmse["gauss"] for row in rows])
    lossy = errors > 0
    scatter.loglog(rates[lossy], errors[lossy], "o", color="tab:blue")
    for row in rows:
        if row.vnmse["gauss"] > 0:
            scatter.annotate(
                _name(row),
                (row.bits_per_element, row.vnmse["gauss"]),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=8,
            )
    bound = np.geomspace(max(rates.min(), 0.01), rates.max(), 200)
    scatter.loglog(bound, 2.0 ** (-2 * bound), "k--", label="Gaussian bound, 2^(-2R)")
    scatter.set_ylim(bottom=errors[lossy].min() / 3 if lossy.any() else None, top=3)
    scatter.set(xlabel="bits per element", ylabel="vNMSE, Gaussian", title="Rate and distortion")
    scatter.legend(loc="lower left")
    places = np.arange(len(rows))[::-1]
    for offset, field, colour in (
        (0.2, "encode_to_memcpy", "tab:orange"),
        (-0.2, "decode_to_memcpy", "tab:green"),
    ):
        values = [getattr(row, field) for row in rows]
        bars.barh(places + offset, values, 0.4, color=colour, label=field.partition("_")[0])
    bars.axvline(1, color="black", linewidth=1)
    bars.set_yticks(places, [_name(row) for row in rows], fontsize=9)
    bars.set(xscale="log", xlabel="speed, multiple of memcpy", title="Speed, one input")
    bars.legend(loc="lower right")
    figure.savefig(path, dpi=110)
