"""``gradcomp bench``: the speed of one spec, or size, error and speed of every codec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gradcomp import _core
from gradcomp.cli import show
from gradcomp.cli.options import JsonOption
from gradcomp.cli.spec_cell import SpecCell
from gradcomp.errors import GradcompError
from gradcomp.tools import bench as benchmark
from gradcomp.tools import survey
from gradcomp.tools.baselines import load_baselines
from gradcomp.tools.survey_plot import plot_survey
from gradcomp.tools.timing import Timing

__all__ = ["bench"]


def bench(
    threads: Annotated[
        list[int],
        typer.Option(
            default_factory=list,
            metavar="N",
            show_default="GRADCOMP_THREADS",
            help="Number of threads; repeat it to see how speed scales.",
        ),
    ],
    data: Annotated[
        list[Path],
        typer.Option(
            default_factory=list,
            metavar="FILE.npz",
            show_default=False,
            help="With --all: a recorded gradient, for its error; repeatable.",
        ),
    ],
    spec: Annotated[
        str | None, typer.Argument(metavar="SPEC", help="Such as 'residual|topk(ratio=0.01)'.")
    ] = None,
    numel: Annotated[int, typer.Option(metavar="N", help="Elements of the gradient.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(metavar="N", help="Samples of each operation.")] = 20,
    every: Annotated[bool, typer.Option("--all", help="Every registered codec.")] = False,
    baselines: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.py", help="With --all: compressors of other libraries, to compare with."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="With --all: draw rate, distortion and speed."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the speed of a spec, or of every codec, next to a memory copy."""
    if every == (spec is not None):
        raise GradcompError("give either a SPEC or --all")
    if spec is None:
        _bench_all(numel, repeats, threads, data, baselines, plot, as_json)
        return
    if data or baselines or plot:
        raise GradcompError("--data, --baselines and --plot go with --all")
    result = benchmark.measure(spec, numel, repeats, threads=threads)
    if as_json:
        show.output_json(asdict(result))
        return
    counts = " and ".join(map(str, result.threads))
    show.output(
        show.wrap(result.spec),
        f"{numel:,} elements, {repeats} repeats, {result.simd}, {counts} thread(s)",
        f"{result.wire_bytes:,} bytes on the wire, {result.bits_per_element:.3f} bits/element, "
        f"vNMSE {result.vnmse:.3g}",
        "",
        _timings_table(result),
    )


def _timings_table(result: benchmark.BenchResult) -> Table:
    several = len(result.threads) > 1
    headings = ["operation", "ns/element", "IQR", "GB/s", "speed/memcpy"]
    if several:
        headings += ["threads", "scaling"]
    table = show.table(*headings, numbers=len(headings) - 1)
    for row in result.timings:
        cells = [
            row.operation,
            f"{row.ns_per_element:.3f}",
            f"{row.ns_iqr:.3f}",
            f"{row.gb_per_s:.2f}",
            f"{row.speed_to_memcpy:.2f}",
        ]
        if several:
            cells += [str(row.threads), f"{row.scaling:.2f}"]
        table.add_row(*cells)
    return table


def _bench_all(
    numel: int,
    repeats: int,
    threads: Sequence[int],
    data: Sequence[Path],
    baselines: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    recorded = survey.load_gradients(data)
    specs = survey.survey_specs()
    peers = [] if baselines is None else load_baselines(baselines)
    rows = []
    with show.progress("codecs", len(specs) + len(peers)) as advance:
        for row in survey.survey(specs, peers, numel, repeats, recorded, threads):
            rows.append(row)
            advance()
    if plot is not None:
        plot_survey(rows, plot)
    comparisons = survey.compare_with_baselines(rows)
    if as_json:
        show.output_json(
            {
                "numel": numel,
                "repeats": repeats,
                "simd": _core.simd_level(),
                "threads": rows[0].threads,
                "rows": [asdict(row) for row in rows],
                "comparisons": [asdict(comparison) for comparison in comparisons],
            }
        )
        return
    first = rows[0].threads[0]
    parts: list[str | Table] = [
        f"{numel:,} elements, {repeats} repeats, {_core.simd_level()}, {first} thread(s)",
        "",
        "bits per element; vNMSE by input:",
        "",
        *_error_tables(rows),
        "10^6 elements per second, and multiples (x) of memcpy:",
        "",
        _speed_table(rows),
    ]
    if len(rows[0].threads) > 1:
        title = f"10^6 elements per second, and multiples (x) of those with {first} thread(s):"
        parts += ["", title, "", _scaling_table(rows)]
    if comparisons:
        parts += ["", "speeds as multiples of a baseline's:", "", _comparison_table(comparisons)]
    show.output(*parts)


_SPEED_HEADINGS = ("encode", "x", "decode", "x", "add", "x")

_INPUTS = 2
"""Inputs in a table of 80 columns; their names may be long."""


def _error_tables(rows: Sequence[survey.SurveyRow]) -> Iterator[str | Table]:
    inputs = list(rows[0].vnmse)
    for first in range(0, len(inputs), _INPUTS):
        some = inputs[first : first + _INPUTS]
        headings = ("spec", "bits", *some)
        table = show.table(*headings, numbers=len(headings) - 1)
        for row in rows:
            table.add_row(
                SpecCell(row.spec),
                f"{row.bits_per_element:.3g}",
                *(f"{row.vnmse[name]:.2g}" for name in some),
            )
        yield table
        yield ""


def _speed_table(rows: Sequence[survey.SurveyRow]) -> Table:
    headings = ("spec", *_SPEED_HEADINGS)
    table = show.table(*headings, numbers=len(headings) - 1)
    for row in rows:
        cells = _speed_cells(row, row.threads[0], lambda timing: timing.speed_to_memcpy)
        table.add_row(SpecCell(row.spec), *cells)
    return table


def _scaling_table(rows: Sequence[survey.SurveyRow]) -> Table:
    headings = ("spec", "threads", *_SPEED_HEADINGS)
    table = show.table(*headings, numbers=len(headings) - 1)
    for row in rows:
        for threads in row.threads:
            speeds = _speed_cells(row, threads, lambda timing: timing.scaling)
            table.add_row(SpecCell(row.spec), str(threads), *speeds)
    return table


def _speed_cells(
    row: survey.SurveyRow, threads: int, multiple: Callable[[Timing], float]
) -> list[str]:
    cells = []
    for operation in ("encode", "decode", "decode_add"):
        timing = row.timing(operation, threads)
        if timing:
            cells += [f"{1e3 / timing.ns_per_element:.0f}", f"{multiple(timing):.2f}"]
        else:
            cells += ["-", "-"]
    return cells


def _comparison_table(comparisons: Sequence[survey.BaselineComparison]) -> Table:
    table = show.table("spec", "baseline", "threads", "encode", "decode", numbers=3)
    for comparison in comparisons:
        table.add_row(
            SpecCell(comparison.spec),
            comparison.baseline,
            str(comparison.threads),
            f"{comparison.encode:.1f}",
            f"{comparison.decode:.1f}",
        )
    return table
