"""``gradcomp profile``: the time of a step under a configuration, by phase and by rule."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from gradcomp.cli import show
from gradcomp.cli.options import MODEL_HELP, ConfigArgument, JsonOption, SetOption
from gradcomp.cli.spec_cell import SpecCell
from gradcomp.config.sources import load_sources
from gradcomp.tools.profile_model import ModelProfile, profile_model
from gradcomp.tools.profile_remarks import remarks_on
from gradcomp.tools.read_model import read_model
from gradcomp.tools.step_model import Link
from gradcomp.tools.synthetic import LATE_STEP

__all__ = ["profile"]


def profile(
    config: ConfigArgument,
    overrides: SetOption,
    workers: Annotated[int, typer.Option(metavar="N", help="Ranks that average together.")] = 4,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps to measure.")] = 3,
    model: Annotated[
        str, typer.Option(metavar="MODEL", help=f"Shapes of {MODEL_HELP}")
    ] = "resnet20",
    bandwidth: Annotated[
        float, typer.Option(metavar="MBIT/S", help="Bandwidth of each rank's link, in Mbit/s.")
    ] = 1000.0,
    step: Annotated[
        int,
        typer.Option(metavar="N", help="Step and epoch of training, for schedules and warm-ups."),
    ] = LATE_STEP,
    as_json: JsonOption = False,
) -> None:
    """Show where a step's time goes under a configuration, and what to change."""
    loaded = load_sources(config, overrides)
    shapes = read_model(model)
    with show.progress(f"{model}, {workers} workers", None) as advance:
        link = Link(1e6 * bandwidth)
        result = profile_model(loaded, shapes, workers, steps, link, step, advance)
    remarks = remarks_on(result)
    if as_json:
        show.output_json(_json(result) | {"advice": remarks})
        return
    sent = sum(result.sent_bytes.values())
    show.output(
        f"{model}, {workers} workers, {result.threads} thread(s), {steps} steps; of one rank, in a "
        "step:",
        "",
        _phases_table(result),
        "",
        show.wrap(
            f"wire: {sent:,.0f} bytes handed over in {result.requests:.0f} requests, at "
            f"{bandwidth:g} Mbit/s, computed; nothing overlaps here"
        ),
        "",
        _rules_table(result),
        "",
        *(show.wrap(f"- {remark}") for remark in remarks),
    )


def _json(result: ModelProfile) -> dict[str, Any]:
    return {
        "workers": result.workers,
        "steps": result.steps,
        "threads": result.threads,
        "bits_per_second": result.link.bits_per_second,
        "phases": result.phases,
        "wire_seconds": result.step.stages["wire"],
        "dense_seconds": result.uncompressed.seconds,
        "seconds": result.step.seconds,
        "sent_bytes": result.sent_bytes,
        "dense_bytes": result.dense_bytes,
        "requests": result.requests,
        "rules": [asdict(row) for row in result.rules],
    }


def _phases_table(result: ModelProfile) -> Table:
    table = show.table("phase", "ms", "share", numbers=2)
    whole = result.step.seconds
    for stage, seconds in result.step.stages.items():
        table.add_row(stage, f"{1e3 * seconds:.3f}", f"{seconds / whole:.1%}")
    table.add_row("all", f"{1e3 * whole:.3f}", "100.0%")
    return table


def _rules_table(result: ModelProfile) -> Table:
    table = show.table("rule and spec", "tensors", "rounds", "computed, ms", numbers=3)
    for row in result.rules:
        table.add_row(
            SpecCell(row.spec, title=row.rule),
            f"{row.tensors:,}",
            f"{row.rounds:,}",
            f"{1e3 * row.seconds:.3f}",
        )
    return table
