"""Baselines: compressors of other libraries, which ``gradcomp bench --all`` compares with ours.

gradcomp imports no framework. Packages that do declare a sequence of `Baseline` under the entry
point group ``gradcomp.baselines``; those that can be imported are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from gradcomp.codec.arrays import FloatArray

__all__ = ["Baseline", "load_baselines"]


@dataclass(frozen=True)
class Baseline:
    """One compressor.

    Attributes:
        name: name in tables: the library, then the method and its parameters.
        codec: name of our codec with the same method; None without one.
        encode: turns a flat float32 gradient into arrays or tensors to send; their ``nbytes`` are
            counted.
        decode: restores the gradient from these and the number of elements.
        set_threads: sets the number of threads of encode and decode.
    """

    name: str
    codec: str | None
    encode: Callable[[FloatArray], Sequence[Any]]
    decode: Callable[[Sequence[Any], int], FloatArray]
    set_threads: Callable[[int], None]


def load_baselines() -> tuple[list[Baseline], list[str]]:
    """The baselines that can be imported, and the reason for each group that cannot."""
    found: list[Baseline] = []
    missing = []
    for entry in entry_points(group="gradcomp.baselines"):
        try:
            found.extend(entry.load())
        except ImportError as error:
            missing.append(f"{entry.name}: {error}")
    return found, missing
