"""Fragments of a model: the parts that streaming averages in turn."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gradcomp.errors import ConfigError

__all__ = ["fragments_of"]

_LAST_PART = re.compile(r"[./][^./]*$")


def fragments_of(names: Iterable[str], count: int) -> list[list[str]]:
    """Divide parameters into fragments: those of layer i belong to fragment i mod ``count``.

    Parameters with names that differ in the last part only, such as ``fc.weight`` and ``fc.bias``, are of
    one layer. Layers that follow each other are in different fragments: Douillard et al., "Streaming
    DiLoCo with overlapping communication" (arXiv:2501.18512), section 2.2, "strided".

    Args:
        names: of all parameters, in the order of the model.
        count: number of fragments, at least 1.

    Raises:
        ConfigError: there are fewer layers than fragments.
    """
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(_LAST_PART.sub("", name), []).append(name)
    if len(layers) < count:
        raise ConfigError(
            f"fragments is {count}; it must be at most {len(layers)}, the number of layers"
        )
    return [
        [name for of_layer in list(layers.values())[first::count] for name in of_layer]
        for first in range(count)
    ]
