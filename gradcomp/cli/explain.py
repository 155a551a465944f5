"""``gradcomp explain``: what a spec does, and the bytes that specs and configurations send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

import gradcomp
from gradcomp.cli import show
from gradcomp.cli.options import MODEL_HELP, JsonOption, OuterOption, SetOption
from gradcomp.cli.spec_cell import SpecCell
from gradcomp.codec import spec as specs
from gradcomp.config.preset import AUTO, AUTO_SPEC
from gradcomp.config.schema import Config
from gradcomp.config.sources import is_path, load_sources
from gradcomp.exchange.select import choices_by_ranks, exchange_pattern
from gradcomp.tools.model_run import STEPS, ModelRun, StepBytes, link_warnings, model_run
from gradcomp.tools.read_model import read_model
from gradcomp.tools.synthetic import LATE_STEP

__all__ = ["explain"]

_NUMELS = (1000, 1_000_000, 100_000_000)
"""Sizes of gradients for which the largest message is shown."""


def explain(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC",
            help='For example "residual|topk(ratio=0.01)"; or a configuration: YAML files, composed '
            "left to right, and a spec for its default.",
        ),
    ],
    overrides: SetOption,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            show_default="resnet20, but none for one spec alone",
            help=f"Count the bytes of a step of {MODEL_HELP}",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="4",
            help="Ranks that average together, for the bytes of a step.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps that are counted.")] = STEPS,
    outer: OuterOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Explain a spec, compare several, or count the bytes that a configuration sends."""
    if overrides or any(map(is_path, sources)):
        parsed, configs = [], [load_sources(sources, overrides)]
    else:
        parsed = [specs.parse(AUTO_SPEC if source == AUTO else source) for source in sources]
        configs = [Config.from_spec(spec) for spec in parsed]
    if model is None and (len(parsed) != 1 or workers is not None):
        model = "resnet20"
    shapes = {} if model is None else read_model(model)
    ranks = 4 if workers is None else workers
    runs: list[ModelRun] = []
    if shapes:
        with show.progress(f"{model}, {ranks} workers", len(configs) * steps * len(shapes)) as tick:
            runs = [model_run(config, shapes, ranks, steps, outer, tick) for config in configs]
    if as_json:
        objects = [_spec_json(spec) for spec in parsed] or [{}]
        for spec_object, config, run in zip(objects, configs, runs, strict=False):
            warnings = link_warnings(config, run)
            spec_object["step"] = {"model": model, **run.as_dict(), "warnings": warnings}
        show.output_json(objects if len(objects) > 1 else objects[0])
        return
    if len(parsed) == 1:
        show.output(*_explained(parsed[0]), *([""] if runs else []))
    if not runs:
        return
    one_step = "a step" if outer == 1 else f"each of {outer} inner steps of a round"
    of_columns = "bits per element of compressed tensors"
    if len(parsed) > 1:
        of_columns = "number of tensors sent uncompressed; bits per element of the others"
    total = runs[0].total
    title = (
        f"{model}, {total.tensors} tensors, {total.numel:,} elements; one of {ranks} ranks in "
        f"{one_step} after all warm-ups: bytes handed to the collectives; bytes that pass its link; "
        f"ratio: to the {total.dense_link_bytes:,.0f} of a ring all-reduce of uncompressed gradients "
        f"in each step; {of_columns}:"
    )
    show.output(show.wrap(title), "")
    if len(parsed) > 1:
        show.output(_specs_table(sources, parsed, runs))
    else:
        show.output(*_by_rule(configs[0], runs[0]))


def _max_bytes(spec: specs.Spec) -> dict[int, int]:
    """The largest payload, or frame, by number of elements; empty for an algorithm."""
    if spec.algorithm:
        return {}  # bytes depend on shapes
    codec = gradcomp.get_codec(spec.first_codec)
    framed = exchange_pattern(spec) == "gather"
    size = codec.max_encoded_size if framed else codec.max_payload_size
    return {numel: size(numel) for numel in _NUMELS}


def _spec_json(spec: specs.Spec) -> dict[str, Any]:
    return {
        "canonical": spec.canonical,
        "stages": [
            {"name": stage.name, "kind": stage.kind, "params": dict(stage.params)}
            for stage in spec.stages
        ],
        "exchange": exchange_pattern(spec),
        "exchange_from_ranks": {str(n): choice.pattern for n, choice in choices_by_ranks(spec)},
        "max_bytes": {str(numel): size for numel, size in _max_bytes(spec).items()},
    }


def _explained(spec: specs.Spec) -> list[str | Table]:
    text = show.wrap(gradcomp.explain(spec))
    sizes = _max_bytes(spec)
    if not sizes:
        return [text]
    table = show.table("elements", "bytes at most", "bits/element", numbers=3)
    for numel, size in sizes.items():
        table.add_row(f"{numel:,}", f"{size:,}", f"{8 * size / numel:.3f}")
    return [text, "", table]


def _specs_table(
    texts: Sequence[str], parsed: Sequence[specs.Spec], runs: Sequence[ModelRun]
) -> Table:
    headings = ("spec", "exchange", "bytes", "link", "ratio", "dense", "bits")
    table = show.table(*headings, numbers=5)
    for text, spec, run in zip(texts, parsed, runs, strict=True):
        exchange = exchange_pattern(spec.at(LATE_STEP, 0), ranks=run.workers)
        *counts, bits = _cells(run.total)
        dense = f"{run.total.dense_tensors}"
        table.add_row(SpecCell(text), exchange, *counts, dense, bits)
    return table


def _by_rule(config: Config, run: ModelRun) -> list[str | Table]:
    table = show.table("rule and spec", "count", "bytes", "link", "ratio", "bits", numbers=5)
    for rule in run.rules:
        name = SpecCell(rule.spec, title=rule.rule)
        table.add_row(name, f"{rule.tensors:,}", *_cells(rule))
    table.add_row("all", f"{run.total.tensors:,}", *_cells(run.total))
    return [
        table,
        "",
        *(
            show.wrap(f"exchange of {rule.rule}: {rule.exchange}, as {rule.exchange_reason}")
            for rule in run.rules
            if rule.exchange_reason
        ),
        *(show.wrap(f"warning: {warning}") for warning in link_warnings(config, run)),
        *([f"inside nodes: {run.node_bytes:,.0f} bytes"] if run.node_bytes else []),
        f"vNMSE of the average: {run.vnmse:.3g}",
        f"time: {run.seconds_per_step:.3g} s/step for all workers, one after the other",
    ]


def _cells(count: StepBytes) -> list[str]:
    """Cells: bytes, link, ratio and bits."""
    bits = count.bits_per_element
    return [
        f"{count.sent_bytes:,.0f}",
        f"{count.link_bytes:,.0f}",
        show.ratio_text(count.link_ratio),
        "-" if bits is None else f"{bits:.3f}",
    ]
