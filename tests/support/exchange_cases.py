"""What the tests of exchange patterns share: configurations, and gradients of several ranks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcomp import Config
from gradcomp.codec.arrays import FloatArray

SHAPES = {"first": (96, 80), "odd": (61, 101), "small": (64, 64)}
"""Each large enough to be compressed; their sizes divide by few numbers of ranks."""


def config_of(spec: str, exchange: str, **others: Any) -> Config:
    """One spec for all tensors that are not small."""
    compress = {"default": spec, "exchange": exchange, **others}
    return Config.from_mapping({"version": 1, "compress": compress, "seed": 5})


def gradients(
    ranks: int, step: int = 0, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> dict[str, list[FloatArray]]:
    """Normal ones, of every rank."""
    rng = np.random.default_rng([ranks, step])
    return {
        name: [rng.standard_normal(shape, np.float32) for _ in range(ranks)]
        for name, shape in shapes.items()
    }
