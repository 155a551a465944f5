"""Arguments and options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

from gradcomp.cli.json_option import JsonOption
from gradcomp.tools.model_shapes import MODELS

__all__ = [
    "MODEL_HELP",
    "ConfigArgument",
    "JsonOption",
    "OuterOption",
    "SetOption",
]

MODEL_HELP = (
    f"one of {', '.join(MODELS)}; a YAML or JSON file of shapes; or MODULE:FUNCTION, which returns a "
    "torch.nn.Module."
)

ConfigArgument = Annotated[
    list[str],
    typer.Argument(metavar="CONFIG", help="YAML files, composed left to right, or a spec."),
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        default_factory=list,
        show_default=False,
        help="Override one dotted key; repeatable.",
    ),
]
OuterOption = Annotated[
    int,
    typer.Option(
        "--outer",
        metavar="H",
        min=1,
        help="Count bytes per inner step of rounds of H inner steps, as OuterStep makes them.",
    ),
]
