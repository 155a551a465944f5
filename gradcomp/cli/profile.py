"""``gradcomp profile``: the time of a step under a configuration, by phase and by rule."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from gradcomp.cli import show
from gradcomp.cli.options import ConfigArgument, JsonOption, SetOption, load
from gradcomp.tools.model_shapes import MODELS, model_shapes
from gradcomp.tools.profile_model import ModelProfile, profile_model
from gradcomp.tools.profile_remarks import remarks_on
from gradcomp.tools.synthetic import LATE_STEP

__all__ = ["profile"]


def profile(
    config: ConfigArgument,
    overrides: SetOption,
    workers: Annotated[int, typer.Option(help="Ranks that average together.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps to measure.")] = 3,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "resnet20",
    bandwidth: Annotated[
        float, typer.Option(metavar="MBIT/S", help="Bandwidth of each rank's link, in Mbit/s.")
    ] = 1000.0,
    step: Annotated[
        int, typer.Option(help="Step and epoch of training, for schedules and warm-ups.")
    ] = LATE_STEP,
    as_json: JsonOption = False,
) -> None:
    """Show where a step's time goes under a configuration, and what to change."""
    loaded = load(config, overrides)
    shapes = model_shapes(model)
    with show.progress(f"{model}, {workers} workers", None) as advance:
        result = profile_model(loaded, shapes, workers, steps, 1e6 * bandwidth, step, advance)
    remarks = remarks_on(result)
    if as_json:
        show.output_json(asdict(result) | {"seconds": result.seconds, "advice": remarks})
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


def _phases_table(result: ModelProfile) -> Table:
    table = show.table("phase", "ms", "share", numbers=2)
    for phase, seconds in result.parts.items():
        table.add_row(phase, f"{1e3 * seconds:.3f}", f"{seconds / result.seconds:.1%}")
    table.add_row("all", f"{1e3 * result.seconds:.3f}", "100.0%")
    return table


def _rules_table(result: ModelProfile) -> Table:
    table = show.table("rule and spec", "tensors", "rounds", "computed, ms", numbers=3)
    for row in result.rules:
        table.add_row(
            show.rule_and_spec(row.rule, row.spec),
            f"{row.tensors:,}",
            f"{row.rounds:,}",
            f"{1e3 * row.seconds:.3f}",
        )
    return table
