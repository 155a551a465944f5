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
    warnings = simulation.link_warnings(loaded, result)
    if as_json:
        show.output_json(asdict(result) | {"warnings": warnings})
        return
    table = show.table("rule and spec", "count", "elements", "bytes", "link", "ratio", numbers=5)
    for group in result.groups:
        table.add_row(
            show.rule_and_spec(group.rule, group.spec),
            f"{group.tensors:,}",
            f"{group.numel:,}",
            f"{group.sent_bytes:,.0f}",
            f"{group.link_bytes:,.0f}",
            show.ratio_text(group.link_ratio),
        )
    table.add_row(
        "all",
        f"{len(shapes):,}",
        f"{result.dense_bytes // 4:,}",
        f"{result.sent_bytes:,.0f}",
        f"{result.link_bytes:,.0f}",
        show.ratio_text(result.link_ratio),
    )
    kind, one_step = "steps", "a step"
    if outer > 1:
        kind, one_step = "outer steps", f"each of {outer} inner steps"
    title = (
        f"{model}, {workers} workers, {steps} {kind}; in {one_step} a rank hands over bytes, and some "
        f"pass its link; ratio: to the {result.dense_link_bytes:,.0f} of a ring all-reduce of "
        "uncompressed gradients, in each step"
    )
    show.output(
        show.wrap(title),
        "",
        table,
        "",
        *(
            show.wrap(f"exchange of {one.rule}: {one.exchange}, as {one.exchange_reason}")
            for one in result.groups
            if one.exchange_reason
        ),
        *(show.wrap(f"warning: {one}") for one in warnings),
        *([f"inside nodes: {result.node_bytes:,.0f} bytes"] if result.node_bytes else []),
        f"vNMSE of the average: {result.vnmse:.3g}",
        f"time: {result.seconds_per_step:.3g} s/step for all workers, one after the other",
    )
