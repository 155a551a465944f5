"""``gradcomp polar-demo`` on coin flips: lossy polar codes next to the rate-distortion bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradcomp.errors import GradcompError
from gradcomp.polar import PolarLossy, distortion_rate, rate_distortion
from gradcomp.tools.plotting import new_figure

__all__ = ["HammingPoint", "hamming_points", "plot"]


@dataclass(frozen=True)
class HammingPoint:
    """One code, measured on fair coin flips.

    Attributes:
        length: N, source bits in a block.
        rate: K/N, compressed bits per source bit.
        distortion: fraction of bits that come back wrong.
        bound: the least distortion of any compressor at this rate.
    """

    length: int
    rate: float
    distortion: float
    bound: float


def hamming_points(
    lengths: Sequence[int], rates: Sequence[float], bits: int, seed: int
) -> Iterator[HammingPoint]:
    """Measure PolarLossy at every length and rate, on at least ``bits`` source bits each.

    Raises:
        GradcompError: a length, rate, number of bits or seed is out of its range.
    """
    if not 1 <= bits <= 2**30:
        raise GradcompError(f"--bits is {bits}; it must be from 1 to 2^30, such as 262144")
    if seed < 0:
        raise GradcompError(f"--seed is {seed}; it must not be negative")
    for length in lengths:
        if not 1 <= length <= 2**20:
            raise GradcompError(f"--length is {length}; it must be from 1 to 1048576, such as 1024")
    for rate in rates:
        if not 0 <= rate <= 1:
            raise GradcompError(f"--rate is {rate}; it must be from 0 to 1, such as 0.5")
    for length in lengths:
        source = np.random.default_rng(seed).integers(0, 2, (-(-bits // length), length), np.uint8)
        for rate in rates:
            code = PolarLossy(length, round(rate * length))
            yield HammingPoint(
                length, code.rate, code.distortion(source), distortion_rate(code.rate)
            )


def plot(points: Sequence[HammingPoint], path: Path) -> None:
    """Draw rate against distortion, and the bound, as one PNG.

    Raises:
        GradcompError: matplotlib is not installed.
    """
    figure = new_figure(7, 5)
    axes = figure.subplots()
    distortions = np.linspace(0, 0.5, 200)
    bound = [rate_distortion(distortion) for distortion in distortions]
    axes.plot(distortions, bound, "k--", label="bound, 1 - h(D)")
    axes.plot([0.5, 0], [0, 1], ":", color="grey", label="sending a part of the bits")
    for length in dict.fromkeys(point.length for point in points):
        chosen = [point for point in points if point.length == length]
        axes.plot(
            [point.distortion for point in chosen],
            [point.rate for point in chosen],
            "o-",
            markersize=4,
            linewidth=1,
            label=f"polar, N = {length}",
        )
    axes.set(
        xlabel="D, fraction of wrong bits",
        ylabel="R, compressed bits per bit",
        title="Lossy compression of fair coin flips",
        xlim=(0, 0.5),
        ylim=(0, 1),
    )
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.legend()
    figure.savefig(path, dpi=110, format="png")
