"""Trials of BytePS and its plug-in for ``gradcomp doctor``; each imports what it tries."""

from __future__ import annotations

import importlib
from importlib.metadata import version

from gradcomp.errors import ProbeError

__all__ = ["byteps", "plugin"]

_BUILD = "python -m byteps_compressors.build"


def byteps() -> str:
    """The imports of BytePS and its adapter."""
    importlib.import_module("byteps.torch")
    importlib.import_module("byteps_compressors.torch")
    return f"byteps {version('byteps')}, which runs on this CPU"


def plugin() -> str:
    """The compiled plug-in library."""
    build = importlib.import_module("byteps_compressors.build")
    try:
        return f"compiled: {build.plugin()}"
    except Exception as error:  # whatever a broken package raises
        raise ProbeError(f"{type(error).__name__}: {error}", fix=_BUILD) from error
