"""``gradcomp polar-demo``: lossy polar codes next to the least distortion of any code."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gradcomp.cli import show
from gradcomp.cli.options import JsonOption
from gradcomp.cli.spec_cell import SpecCell
from gradcomp.errors import GradcompError
from gradcomp.polar import rate_distortion
from gradcomp.tools import polar_demo as hamming
from gradcomp.tools import rate_distortion as gaussian

__all__ = ["polar_demo"]

NORMAL_RATES = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0]
"""Bits per element measured by default where values are normal."""


def polar_demo(
    lengths: Annotated[
        list[int] | None,
        typer.Option(
            "--length",
            metavar="N",
            show_default="256, 1024, 4096, 16384; normal: 16384",
            help="Source bits in a block, or the codes' length; repeatable.",
        ),
    ] = None,
    rates: Annotated[
        list[float] | None,
        typer.Option(
            "--rate",
            metavar="R",
            show_default="0.1, 0.2, ... 0.9; normal: 1/16, 1/8, ... 2",
            help="Compressed bits per bit, or per element; repeatable.",
        ),
    ] = None,
    source: Annotated[
        str, typer.Option(metavar="bits|normal", help="Fair coin flips, or normal values.")
    ] = "bits",
    bits: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="262144; normal: 1048576",
            help="Source bits, or elements, measured for each point.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the source bits or values.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the points and the bound.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compress coin flips or normal values with polar codes; compare with the bound."""
    if source == "normal":
        elements = 2**20 if bits is None else bits
        _normal_demo(lengths or [16384], rates or NORMAL_RATES, elements, seed, plot, as_json)
        return
    if source != "bits":
        raise GradcompError(f"--source is {source!r}; it must be bits or normal")
    lengths = lengths or [256, 1024, 4096, 16384]
    rates = rates or [tenths / 10 for tenths in range(1, 10)]
    _bits_demo(lengths, rates, 2**18 if bits is None else bits, seed, plot, as_json)


def _bits_demo(
    lengths: list[int], rates: list[float], bits: int, seed: int, plot: Path | None, as_json: bool
) -> None:
    points = []
    with show.progress("codes", len(lengths) * len(rates)) as advance:
        for point in hamming.hamming_points(lengths, rates, bits, seed):
            points.append(point)
            advance()
    if plot is not None:
        hamming.plot(points, plot)
    if as_json:
        rows = [asdict(point) for point in points]
        show.output_json({"bits": bits, "seed": seed, "points": rows})
        return
    table = show.table("N", "R = K/N", "distortion D", "least D", "1 - h(D)", numbers=5)
    for point in points:
        table.add_row(
            str(point.length),
            f"{point.rate:.4f}",
            f"{point.distortion:.4f}",
            f"{point.bound:.4f}",
            f"{rate_distortion(min(point.distortion, 0.5)):.4f}",
        )
    show.output(
        f"fair coin flips, at least {bits:,} bits a point; D is the part that is wrong", "", table
    )


def _normal_demo(
    lengths: list[int],
    rates: list[float],
    elements: int,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    points = list(gaussian.gaussian_points(lengths, rates, elements, seed))
    if plot is not None:
        gaussian.plot(points, plot)
    if as_json:
        rows = [asdict(point) for point in points]
        show.output_json({"elements": elements, "seed": seed, "points": rows})
        return
    table = show.table("compressor", "R", "vNMSE", "2^(-2R)", "gap, dB", numbers=4)
    for point in points:
        table.add_row(
            SpecCell(point.name),
            f"{point.rate:.4f}",
            f"{point.vnmse:.4f}",
            f"{point.bound:.4f}",
            f"{point.gap:.3f}",
        )
    show.output(f"{elements:,} normal values; R is bits per element of the whole frame", "", table)
