"""``gradcomp polar-demo --source normal``: codecs next to the rate-distortion bound 2^(-2 rate)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gradcomp.codec.codec import get_codec
from gradcomp.errors import GradcompError
from gradcomp.tools.plotting import new_figure

__all__ = ["GaussianPoint", "gaussian_points", "plot"]

MIN_RATE, MAX_RATE = 1 / 32, 4


@dataclass(frozen=True)
class GaussianPoint:
    """One compressor, measured on normal values.

    Attributes:
        name: a spec, or "ECSQ": the best uniform quantizer with ideal entropy coding, by theory.
        rate: bits per element of the whole frame.
        vnmse: squared error over the squared norm.
        bound: least vNMSE of any code of this rate, 2^(-2 rate).
        gap: ratio of vnmse to bound, in decibels.
    """

    name: str
    rate: float
    vnmse: float
    bound: float
    gap: float


def _point(name: str, rate: float, vnmse: float) -> GaussianPoint:
    bound = 4.0**-rate
    return GaussianPoint(name, rate, vnmse, bound, 10 * math.log10(vnmse / bound))


def measure(spec: str, x: npt.NDArray[np.float32]) -> GaussianPoint:
    """Measure a spec on normal values."""
    codec = get_codec(spec)
    frame = codec.encode(x)
    error = x.astype(np.float64) - codec.decode(frame)
    energy = float(np.sum(x.astype(np.float64) ** 2))
    return _point(codec.spec, 8 * frame.size / x.size, float(error @ error) / energy)


def _quantized(step: float, dead: float) -> tuple[float, float]:
    """Rate and vNMSE of quantizing a normal value to the means of cells, with ideal entropy coding.

    Cells are ``step`` wide; the cell around 0 is ``dead`` steps wide.
    """
    edges = np.array([dead / 2 + k for k in range(math.ceil(9 / step) + 2)]) * step
    beyond = np.array([0.5 * math.erfc(edge / math.sqrt(2)) for edge in edges])
    density = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
    share = np.maximum(beyond[:-1] - beyond[1:], 1e-30)
    moment = density[:-1] - density[1:]
    zero = math.erf(edges[0] / math.sqrt(2))
    rate = -zero * math.log2(zero) - 2 * float(np.sum(share * np.log2(share)))
    return rate, 1 - 2 * float(np.sum(moment**2 / share))


@lru_cache(maxsize=64)
def ecsq(rate: float) -> float:
    """vNMSE of the best uniform quantizer with a dead zone and ideal entropy coding."""
    best = 1.0
    for dead in np.linspace(0.9, 2.5, 33):
        low, high = 0.01, 12.0
        for _ in range(40):
            step = math.sqrt(low * high)
            if _quantized(step, dead)[0] > rate:
                low = step
            else:
                high = step
        best = min(best, _quantized(high, dead)[1])
    return best


def _topk(rate: float, x: npt.NDArray[np.float32]) -> GaussianPoint:
    """Top-k with 16-bit values, its ratio chosen for this rate of the frame."""
    low, high = 1e-6, 1.0
    for _ in range(12):
        ratio = math.sqrt(low * high)
        size = get_codec(f"topk(ratio={ratio:.6g},values=fp16)").encode(x).size
        low, high = (ratio, high) if 8 * size / x.size < rate else (low, ratio)
    return measure(f"topk(ratio={low:.6g},values=fp16)", x)


def gaussian_points(
    lengths: Sequence[int], rates: Sequence[float], elements: int, seed: int
) -> Iterator[GaussianPoint]:
    """Measure ``polar``, ECSQ and top-k at every rate, and ``sign`` at 1.

    Raises:
        GradcompError: a length, rate, number of elements or seed is out of its range.
    """
    if not 4096 <= elements <= 2**28:
        raise GradcompError(f"--bits is {elements}; with --source normal it must be 4096 to 2^28")
    if seed < 0:
        raise GradcompError(f"--seed is {seed}; it must not be negative")
    for length in lengths:
        if length not in (1024, 4096, 16384):
            raise GradcompError(
                f"--length is {length}; with --source normal it must be 1024, 4096 or 16384"
            )
    for rate in rates:
        if not MIN_RATE <= rate <= MAX_RATE:
            raise GradcompError(
                f"--rate is {rate}; with --source normal it must be from 1/32 to 4, such as 0.5"
            )
    x = np.random.default_rng(seed).standard_normal(elements, np.float32)
    for rate in rates:
        for length in lengths:
            yield measure(f"polar(rate={rate:g},n={length})", x)
        yield _point("ECSQ", rate, ecsq(rate))
        yield _topk(rate, x)
        if rate == 1:
            yield measure("sign", x)


def plot(points: Sequence[GaussianPoint], path: Path) -> None:
    """Draw the gaps to the bound over the rate, as one PNG.

    Raises:
        GradcompError: matplotlib is not installed.
    """
    figure = new_figure(7, 5)
    axes = figure.subplots()
    families: dict[str, list[GaussianPoint]] = {}
    for point in points:
        name, _, rest = point.name.partition("(")
        length = rest.split(",")[0].removeprefix("n=")
        families.setdefault(f"polar, n = {length}" if name == "polar" else name, []).append(point)
    for label, family in families.items():
        axes.plot(
            [point.rate for point in family],
            [point.gap for point in family],
            "o-",
            markersize=4,
            linewidth=1,
            label=label,
        )
    axes.axhline(0, color="black", linestyle="--", label="bound, 2^(-2R)")
    axes.set(
        xlabel="R, bits per element",
        ylabel="gap to the bound, dB",
        title="Compression of normal values",
    )
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.legend()
    figure.savefig(path, dpi=110, format="png")
