"""``gradcomp list``: the stages of specs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from gradcomp.cli import show
from gradcomp.cli.json_option import JsonOption
from gradcomp.codec import spec as specs
from gradcomp.codec.stage_names import stage_hint
from gradcomp.errors import GradcompError
from gradcomp.exchange.select import exchange_pattern, patterns_text

__all__ = ["list_stages"]


def list_stages(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="STAGE", help="Show these in full, with their parameters."),
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
        raise GradcompError(f"unknown stage '{name}': {stage_hint(name, known)}")
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
