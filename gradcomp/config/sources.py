"""Configurations from a command line: YAML files, a bare spec, and overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradcomp.codec import spec as specs
from gradcomp.config.preset import AUTO
from gradcomp.config.schema import Config, load_config
from gradcomp.errors import ConfigError

__all__ = ["files_and_overrides", "is_path", "load_sources", "load_spec"]


def load_sources(sources: Sequence[str], overrides: Sequence[str] = ()) -> Config:
    """The configuration in the files of ``sources``; a bare spec there sets compress.default.

    Raises ConfigError, also for more than one spec.
    """
    paths, overrides = files_and_overrides(sources, overrides)
    return load_config(paths, overrides if paths else ["version=1", *overrides])


def load_spec(spec: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration of one spec, under overrides."""
    return load_config([], ["version=1", _default(spec), *overrides])


def files_and_overrides(
    sources: Sequence[str], overrides: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The paths in ``sources``, and the overrides after that of a bare spec.

    Raises ConfigError for more than one spec, and SpecError for a wrong one.
    """
    paths = [source for source in sources if is_path(source)]
    bare = [source for source in sources if not is_path(source)]
    if len(bare) > 1:
        raise ConfigError(f"got {len(bare)} specs, {', '.join(map(repr, bare))}; give one at most")
    return paths, [*map(_default, bare), *overrides]


def is_path(source: str) -> bool:
    """Whether an argument is the path of a file, not a spec."""
    return "/" in source or source.endswith((".yaml", ".yml")) or Path(source).is_file()


def _default(spec: str) -> str:
    return f"compress.default={spec if spec == AUTO else specs.parse(spec).canonical}"
