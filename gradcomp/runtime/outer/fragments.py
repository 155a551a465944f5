"""Fragments of a model: the parts that streaming averages in turn."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from gradcomp.errors import ConfigError

__all__ = ["PATTERNS", "fragments_of"]

PATTERNS = ("strided", "sequential")
"""Choices of the layers of a fragment."""

_LAST_PART = re.compile(r"[./][^./]*$")


def fragments_of(names: Iterable[str], count: int, pattern: str = "strided") -> list[list[str]]:
    """Divide parameters into fragments of whole layers.

    Parameters with names that differ in the last part only, such as ``fc.weight`` and ``fc.bias``, are of
    one layer. The patterns are those of Douillard et al., "Streaming DiLoCo with overlapping
    communication" (arXiv:2501.18512), section 2.2.

    Args:
        names: of all parameters, in the order of the model.
        count: number of fragments, at least 1.
        pattern: "strided": layer i belongs to fragment i mod ``count``, so layers that follow each other
            are in different ones. "sequential": fragments are runs of layers, of which the first ones
            have one more where ``count`` does not divide their number.

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
    if pattern == "strided":
        fragments = [list(layers.values())[first::count] for first in range(count)]
    else:
        each, more = divmod(len(layers), count)
        remaining = iter(layers.values())
        fragments = [list(islice(remaining, each + (i < more))) for i in range(count)]
    return [[name for of_layer in fragment for name in of_layer] for fragment in fragments]
