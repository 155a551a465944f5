"""``gradcomp simulate``: the bytes that a configuration sends for a model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from gradcomp.cli import show
from gradcomp.cli.options import ConfigArgument, JsonOption, OuterOption, SetOption, load
from gradcomp.tools import simulate as simulation
from gradcomp.tools.model_shapes import MODELS, model_shapes

__all__ = ["simulate"]


def simulate(
    config: ConfigArgument,
    workers: Annotated[int, typer.Option(help="Ranks that average together.")],
    overrides: SetOption,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 3,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "resnet20",
    outer: OuterOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Count the bytes a configuration sends for a model."""
    loaded = load(config, overrides)
    shapes = model_shapes(model)
    with show.progress(f"{model}, {workers} workers", steps * len(shapes)) as advance:
        result = simulation.simulate(loaded, shapes, workers, steps, advance).over(outer)
    if as_json:
        show.output_json(asdict(result))
        return
    table = show.table("rule and spec", "tensors", "elements", "bytes", "ratio", numbers=4)
    for group in result.groups:
        table.add_row(
            show.rule_and_spec(group.rule, group.spec),
            f"{group.tensors:,}",
            f"{group.numel:,}",
            f"{group.sent_bytes:,.0f}",
            f"{group.ratio:.1f}",
        )
    table.add_row(
        "all",
        f"{len(shapes):,}",
        f"{result.dense_bytes // 4:,}",
        f"{result.sent_bytes:,.0f}",
        f"{result.ratio:.1f}",
    )
    kind, one_step = "steps", "a step"
    if outer > 1:
        kind, one_step = "outer steps", f"each of {outer} inner steps"
    title = (
        f"{model}, {workers} workers, {steps} {kind}; bytes that a rank hands over in {one_step}:"
    )
    show.output(
        show.wrap(title),
        "",
        table,
        "",
        *([f"inside nodes: {result.node_bytes:,.0f} bytes"] if result.node_bytes else []),
        f"vNMSE of the average: {result.vnmse:.3g}",
        f"time: {result.seconds_per_step:.3g} s/step for all workers, one after the other",
    )
