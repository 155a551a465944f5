"""Baselines: compressors of other libraries, which ``gradcomp bench --all`` measures next to ours.

gradcomp imports no framework, so they are in separate files; see `load_baselines`.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradcomp.codec.arrays import FloatArray
from gradcomp.errors import GradcompError

__all__ = ["Baseline", "load_baselines"]


@dataclass(frozen=True)
class Baseline:
    """One compressor.

    Attributes:
        name: name in tables: the library, then the method and its parameters.
        codec: name of our codec with the same method; None without one.
        encode: turns a flat float32 gradient into arrays or tensors to send, whose ``nbytes`` are
            counted.
        decode: restores the gradient from these and the number of elements.
        set_threads: sets the number of threads of encode and decode.
    """

    name: str
    codec: str | None
    encode: Callable[[FloatArray], Sequence[Any]]
    decode: Callable[[Sequence[Any], int], FloatArray]
    set_threads: Callable[[int], None]


def load_baselines(path: Path) -> Sequence[Baseline]:
    """Run a Python file, and return its sequence ``BASELINES``.

    Raises:
        GradcompError: there is no such file, it imports a package that is not installed, or it has
            no ``BASELINES``.
    """
    try:
        names = runpy.run_path(str(path))
    except (ImportError, OSError) as error:
        raise GradcompError(f"the baselines of {path} cannot be loaded: {error}") from error
    if "BASELINES" not in names:
        raise GradcompError(
            f"{path} has no BASELINES: a sequence of gradcomp.tools.baselines.Baseline"
        )
    baselines: Sequence[Baseline] = names["BASELINES"]
    return baselines
