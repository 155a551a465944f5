"""``gradcomp list`` and ``gradcomp explain``: the stages of specs, and what specs do and cost."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

import gradcomp
from gradcomp.cli import show
from gradcomp.cli.options import JsonOption, OuterOption
from gradcomp.codec import spec as specs
from gradcomp.errors import GradcompError
from gradcomp.exchange.link import dense_link_bytes
from gradcomp.exchange.select import choices_by_ranks, exchange_pattern, patterns_text
from gradcomp.tools.model_shapes import MODELS, model_shapes
from gradcomp.tools.step_bytes import ModelBytes, model_bytes

__all__ = ["explain", "list_stages"]

_NUMELS = (1000, 1_000_000, 100_000_000)
"""Sizes of gradients for which ``explain`` shows the largest message."""


def list_stages(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STAGE]...", help="Show these in full, with their parameters."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the stages a spec may name."""
    rows = [_stage(name) for name in names] if names else list(specs.stages())
    if as_json:
        show.output_json([asdict(row) | {"exchange": _exchange(row)} for row in rows])
    elif names:
        show.output(*(show.wrap(_in_full(row)) for row in rows))
    else:
        table = show.table("stage", "kind", "exchange", "what it does")
        for row in rows:
            table.add_row(row.name, row.kind, _exchange(row) or "-", row.summary)
        show.output(table, "", "parameters and paper of a stage: gradcomp list STAGE")


def _stage(name: str) -> specs.StageInfo:
    known = {row.name: row for row in specs.stages()}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        guess = f"did you mean '{near[0]}'? " if near else ""
        raise GradcompError(f"unknown stage '{name}': {guess}known: {', '.join(known)}")
    return known[name]


def _in_full(row: specs.StageInfo) -> str:
    exchange = patterns_text(specs.parse(row.example)) if _exchange(row) else None
    lines = [f"{row.kind} {row.name}: {row.summary}", f"  as in: {row.example}"]
    for param in row.params:
        default = "" if param.default is None else f" = {param.default}"
        lines.append(f"  {param.name}{default}, in {param.range}: {param.doc}")
    if row.exactly_one_of:
        lines.append(f"  exactly one of {', '.join(row.exactly_one_of)} must be given")
    if exchange is not None:
        lines.append(f"  exchange: {exchange}")
    return "\n".join([*lines, f"  NaN and Inf: {row.nonfinite}", f"  source: {row.paper}"])


def _exchange(row: specs.StageInfo) -> str | None:
    if row.kind not in ("codec", "algorithm"):
        return None
    return exchange_pattern(specs.parse(row.example))


def explain(
    spec: Annotated[
        list[str],
        typer.Argument(metavar="SPEC...", help='For example "residual|topk(ratio=0.01)".'),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            show_default="resnet20, with several specs",
            help=f"Count the bytes of a step of {', '.join(MODELS)}.",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=2, help="Ranks that average together, for the bytes of a step.")
    ] = 4,
    outer: OuterOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Explain a spec: stages, parameters, exchange pattern, size; or compare several."""
    parsed = [specs.parse(one) for one in spec]
    several = len(parsed) > 1
    if several and model is None:
        model = "resnet20"
    shapes = {} if model is None else model_shapes(model)
    steps = [model_bytes(one, shapes, workers).over(outer) for one in parsed] if shapes else []
    if as_json:
        objects = [_spec_json(one) for one in parsed]
        for one, step in zip(objects, steps, strict=False):
            one["step"] = {"model": model, **asdict(step)}
        show.output_json(objects if several else objects[0])
        return
    if not several:
        show.output(*_explained(parsed[0]), *([""] if steps else []))
    if steps:
        numel = sum(map(math.prod, shapes.values()))
        one_step = "a step" if outer == 1 else f"each of {outer} inner steps of a round"
        title = (
            f"{model}, {len(shapes)} tensors, {numel:,} elements; one of {workers} ranks in {one_step} "
            "after all warm-ups: bytes handed to the collectives; bytes that pass its link; ratio: to "
            f"the {dense_link_bytes(4 * numel, workers):,.0f} of a ring all-reduce of uncompressed "
            "gradients in each step; number of tensors sent uncompressed; bits per element of the "
            "others:"
        )
        show.output(show.wrap(title), "", _steps_table(spec, steps))


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
        "exchange_from_ranks": {str(n): one.pattern for n, one in choices_by_ranks(spec)},
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


def _steps_table(texts: Sequence[str], steps: Sequence[ModelBytes]) -> Table:
    headings = ("spec", "exchange", "bytes", "link", "ratio", "dense", "bits")
    table = show.table(*headings, numbers=5)
    for text, step in zip(texts, steps, strict=True):
        bits = step.bits_per_element
        table.add_row(
            show.foldable(text),
            step.exchange,
            f"{step.sent_bytes:,.0f}",
            f"{step.link_bytes:,.0f}",
            show.ratio_text(step.link_ratio),
            f"{step.dense_tensors}",
            "-" if bits is None else f"{bits:.3f}",
        )
    return table
