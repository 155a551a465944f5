"""Arguments and options that several commands take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gradcomp.cli.json_option import JsonOption
from gradcomp.codec import spec as specs
from gradcomp.config.preset import AUTO
from gradcomp.config.schema import Config, load_config
from gradcomp.errors import ConfigError

__all__ = ["ConfigArgument", "JsonOption", "OuterOption", "SetOption", "is_path", "load"]

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


def load(sources: Sequence[str], overrides: Sequence[str]) -> Config:
    """The configuration in the files of ``sources``; a bare spec there sets compress.default.

    Raises ConfigError, also for more than one spec.
    """
    paths = [source for source in sources if is_path(source)]
    bare = [source for source in sources if not is_path(source)]
    if len(bare) > 1:
        raise ConfigError(f"got {len(bare)} specs, {', '.join(map(repr, bare))}; give one at most")
    if not bare:
        return load_config(paths, overrides)
    canonical = bare[0] if bare[0] == AUTO else specs.parse(bare[0]).canonical
    start = [] if paths else ["version=1"]
    return load_config(paths, [*start, f"compress.default={canonical}", *overrides])


def is_path(source: str) -> bool:
    """Whether an argument is the path of a file, not a spec."""
    return "/" in source or source.endswith((".yaml", ".yml")) or Path(source).is_file()
