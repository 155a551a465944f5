"""Names of runs for readers: what each compresses with."""

from __future__ import annotations

from collections.abc import Sequence

from gradcomp.codec.spec import parse
from gradcomp.errors import GradcompError
from gradcomp.tools.run_folder import RunFolder

__all__ = ["names_of", "spec_of"]


def spec_of(run: RunFolder) -> str | None:
    """The spec of a run without parameters that have their defaults; None if no file tells it."""
    config = run.facts.get("config")
    if not isinstance(config, dict):
        return None
    compress = config.get("compress")
    if compress is None:
        return "uncompressed" if "train" in config and "gossip" not in config else None
    spec = compress.get("default") if isinstance(compress, dict) else None
    if not isinstance(spec, str):
        return None
    try:
        return parse(spec).short
    except GradcompError:
        return spec


def names_of(runs: Sequence[RunFolder]) -> list[str]:
    """The specs of several runs where they tell the runs apart; else the labels."""
    specs = [spec for run in runs if (spec := spec_of(run)) is not None]
    return specs if len(set(specs)) == len(runs) > 1 else [run.label for run in runs]
