"""``gradcomp check``: the rules of a configuration, and what given tensors use."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from gradcomp.cli import show
from gradcomp.cli.options import MODEL_HELP, ConfigArgument, JsonOption, SetOption
from gradcomp.cli.spec_cell import SpecCell
from gradcomp.config.idle_rules import unreachable_rules
from gradcomp.config.match import Match
from gradcomp.config.schema import Compress
from gradcomp.config.sources import load_sources
from gradcomp.config.spec_schedule import Resolution, SpecPhase, SpecSchedule
from gradcomp.errors import GradcompError
from gradcomp.exchange.pieces import is_cut, pieces_of
from gradcomp.exchange.select import patterns_text
from gradcomp.tools.read_model import read_model

__all__ = ["check"]

_SIZE = re.compile("[0-9]{1,18}")


def check(
    config: ConfigArgument,
    overrides: SetOption,
    tensors: Annotated[
        list[str],
        typer.Option(
            "--tensor",
            metavar="NAME=SHAPE",
            default_factory=list,
            show_default=False,
            help="Show what this tensor takes, such as fc.weight=512x64; repeatable.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help=f"Show what each tensor takes of {MODEL_HELP}"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Validate a configuration and show its rules, in order."""
    loaded = load_sources(config, overrides)
    compress = loaded.compress
    rules = _rules(compress)
    named = [*map(_named_shape, tensors), *({} if model is None else read_model(model)).items()]
    taken = [(name, shape, loaded.resolve(name, shape)) for name, shape in named]
    if as_json:
        show.output_json(
            {
                "seed": loaded.seed,
                "policy": compress.policy,
                "warnings": unreachable_rules(loaded),
                "ranks_per_node": compress.ranks_per_node,
                "rules": [
                    {"rule": chosen.rule, "match": _conditions(match), **_schedule_json(chosen)}
                    for chosen, match in rules
                ],
                "tensors": [
                    {
                        "name": name,
                        "shape": shape,
                        "pieces": _pieces(name, shape),
                        "rule": chosen.rule,
                        **_schedule_json(chosen),
                    }
                    for name, shape, chosen in taken
                ],
            }
        )
        return
    # A column less leaves room for the specs.
    asked = any(exchange != "auto" for *_, exchange in compress.choices) or any(
        chosen.averaging.changes for chosen in compress.resolutions
    )
    table = show.table("rule", "tensors", "spec", *(["exchange"] if asked else []))
    for chosen, match in rules:
        label, conditions = chosen.rule, _conditions_text(match)
        for phase, pattern in _phases(chosen):
            exchange = ", ".join(filter(None, (pattern, str(chosen.averaging))))
            table.add_row(
                label, conditions, SpecCell(_phase_text(phase)), *([exchange] if asked else [])
            )
            label = conditions = ""
    nodes = compress.ranks_per_node
    policy = ["policy: auto"] if compress.policy == "auto" else []
    layout = [] if nodes is None else [f"ranks per node: {nodes}"]
    warnings = [f"warning: {text}" for text in unreachable_rules(loaded)]
    show.output("valid", *warnings, f"seed: {loaded.seed}", *policy, *layout, "", table)
    if taken:
        table = show.table("tensor", "shape", "rule", "spec")
        for name, shape, chosen in taken:
            text = "\n".join(_phase_text(phase) for phase in chosen.schedule.phases)
            pieces = _pieces(name, shape)
            if pieces > 1:
                text += f"\nin {pieces} pieces"
            table.add_row(name, _shape_text(shape), chosen.rule, SpecCell(text))
        show.output("", table)


def _rules(compress: Compress) -> list[tuple[Resolution, Match]]:
    """All rules in the order in which tensors try them."""
    default, *written = compress.resolutions
    small = SpecSchedule.of(compress.small)
    return [
        *zip(written, (rule.match for rule in compress.rules), strict=True),
        *(
            (Resolution(f"default rule: {label}", small), match)
            for label, match in compress.default_rules.items()
        ),
        (default, Match()),
    ]


def _pieces(name: str, shape: tuple[int, ...]) -> int:
    """The number of pieces in which a tensor is averaged."""
    return len(pieces_of(name, shape)) if is_cut(math.prod(shape)) else 1


def _phases(chosen: Resolution) -> list[tuple[SpecPhase, str]]:
    """The phases of a rule's schedule, each with its exchange pattern."""
    return [
        (phase, patterns_text(phase.use, phase.exchange or chosen.exchange, chosen.averaging))
        for phase in chosen.schedule.phases
    ]


def _schedule_json(chosen: Resolution) -> dict[str, Any]:
    (first, pattern), *later = _phases(chosen)
    then = [
        {
            f"from_{phase.begin[0]}": phase.begin[1],
            "spec": phase.use.canonical,
            "exchange": pattern,
            "state": phase.state,
        }
        for phase, pattern in later
    ]
    return {
        "spec": first.use.canonical,
        "exchange": pattern,
        **chosen.averaging.changes,
        **({"then": then} if then else {}),
    }


def _phase_text(phase: SpecPhase) -> str:
    """The spec of a phase, after the beginning of the phase if it is not the first."""
    unit, begin = phase.begin
    dropping = ", state dropped" if phase.state == "drop" else ""
    start = f"from {unit} {begin}{dropping}: " if unit else ""
    return start + phase.use.canonical


def _named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, shape = text.rpartition("=")
    sizes = shape.split("x") if shape else []
    if not (name and equals and all(_SIZE.fullmatch(size) for size in sizes)):
        raise GradcompError(
            f"--tensor {reprlib.repr(text)}: expected NAME=SHAPE, the shape as sizes of at most 18 "
            "digits joined by 'x': fc.weight=512x64 (empty for a scalar)"
        )
    return name, tuple(int(size) for size in sizes)


def _shape_text(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _conditions(match: Match) -> dict[str, Any]:
    return match.model_dump(exclude_none=True)


def _conditions_text(match: Match) -> str:
    conditions = _conditions(match)
    return "\n".join(f"{key}: {_plain(value)}" for key, value in conditions.items()) or "all others"


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
