"""``gradcomp consensus``: the bits that gossip algorithms need until ranks agree."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gradcomp.cli import show
from gradcomp.cli.options import JsonOption
from gradcomp.cli.spec_cell import SpecCell
from gradcomp.gossip import TOPOLOGIES, make_topology
from gradcomp.tools import consensus as experiment

__all__ = ["consensus"]


def consensus(
    algorithms: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            metavar="NAME",
            show_default=", ".join(experiment.DEFAULTS),
            help="gossip, powergossip:RANK, choco:SPEC, "
            "quantized_push_sum:SPEC, deepsqueeze:SPEC, moniqua:BITS; "
            "repeatable.",
        ),
    ] = None,
    data: Annotated[
        str, typer.Option(metavar="|".join(experiment.DATA), help="Kind of matrices.")
    ] = "random",
    gammas: Annotated[
        list[float] | None,
        typer.Option(
            "--gamma",
            metavar="G",
            show_default=", ".join(map(str, experiment.GAMMAS)),
            help="Step size, in (0, 2]; repeatable.",
        ),
    ] = None,
    topology: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of {', '.join(TOPOLOGIES)}.")
    ] = "ring",
    ranks: Annotated[int, typer.Option(metavar="N", help="Number of ranks.")] = 8,
    size: Annotated[
        int, typer.Option(metavar="N", help="Rows and columns of each rank's matrix.")
    ] = 100,
    steps: Annotated[int, typer.Option(metavar="N", help="Rounds of each run.")] = 200,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the matrices.", min=0)] = 0,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write all points of all runs.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw distance against bits.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how many bits gossip algorithms need until ranks agree."""
    graph = make_topology(topology, ranks)
    values = experiment.make_data(data, ranks, size, seed)
    names, sizes = algorithms or experiment.DEFAULTS, gammas or experiment.GAMMAS
    runs = []
    with show.progress("runs", len(names) * len(sizes)) as advance:
        for run in experiment.sweep(names, sizes, values, graph, steps):
            runs.append(run)
            advance()
    if csv is not None:
        experiment.write_csv(runs, csv)
    if plot is not None:
        experiment.plot(runs, f"{data} matrices, {topology} of {ranks}", plot)
    if as_json:
        rows = [asdict(run) for run in runs]
        show.output_json({"data": data, "topology": topology, "runs": rows})
        return
    table = show.table("algorithm", "gamma", "kbit/step", "distance", "Mbit to 1%", numbers=4)
    for run in experiment.best(runs):
        needed = run.bits_to(0.01)
        table.add_row(
            SpecCell(run.algorithm),
            f"{run.gamma:g}",
            f"{run.final.bits / run.final.step / 1e3:.1f}",
            f"{run.final.distance:.2g}",
            "-" if needed is None else f"{needed / 1e6:.2f}",
        )
    show.output(
        show.wrap(
            f"{data} {size} x {size} matrices, {topology} of {ranks} ranks, {steps} steps; of each "
            "algorithm the best step size:"
        ),
        "",
        table,
    )
