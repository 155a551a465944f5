"""Compressors of other libraries, which ``gradcomp bench --all`` measures beside ours.

gradcomp imports no framework. A package that does names a sequence of `Baseline` under the entry point
group ``gradcomp.baselines``, and those that can be imported are measured.
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
        name: for tables; the library, then the method and its parameters.
        codec: the name of our codec that does the same, if there is one.
        encode: makes of a flat float32 gradient the arrays or tensors that travel. Their
            ``nbytes`` are counted as sent.
        decode: makes of these, and the number of elements, the gradient again.
        set_threads: how many threads encode and decode may use from now on.
    """

    name: str
    codec: str | None
    encode: Callable[[FloatArray], Sequence[Any]]
    decode: Callable[[Sequence[Any], int], FloatArray]
    set_threads: Callable[[int], None]


def load_baselines() -> tuple[list[Baseline], list[str]]:
    """The peers that can be imported, and for each group of others why it is left out."""
    peers: list[Baseline] = []
    missing = []
    for entry in entry_points(group="gradcomp.baselines"):
        try:
            peers.extend(entry.load())
        except ImportError as error:
            missing.append(f"{entry.name}: {error}")
    return peers, missing
