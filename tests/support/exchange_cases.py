"""Configurations and gradients of the exchange patterns' tests, and the law of all patterns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcomp import Config, Loopback
from gradcomp.codec.arrays import FloatArray
from support.gradients import Shape, one_stream
from support.pipelines import configured

# Seeded codecs, one with shared random numbers, one that is not linear, and one for each kind of
# error feedback in the core.
CODECS = [
    "topk(ratio=0.02)",
    "randomk(ratio=0.05)",
    "qsgd(levels=7)",
    "int8",
    "sign",
    "fp16",
    "bf16",
    "polar_b(rate=0.5)",
    "sketch(ratio=0.2)",
]

SHAPES = {"first": (96, 80), "odd": (61, 101), "small": (64, 64)}
"""Each large enough to be compressed; their sizes divide by few numbers of ranks."""


def config_of(spec: str, exchange: str, **others: Any) -> Config:
    """One spec for all tensors that are not small."""
    compress = {"default": spec, "exchange": exchange, **others}
    return configured(**compress, seed=5)


def gradients(
    ranks: int, step: int = 0, shapes: Mapping[str, Shape] = SHAPES
) -> dict[str, list[FloatArray]]:
    """Normal gradients of every tensor and rank."""
    return one_stream(shapes, ranks, [ranks, step])


def check_replicas(averages: Mapping[str, list[FloatArray]]) -> None:
    """Check that all ranks have the same finite averages."""
    for name, one in averages.items():
        assert all(average.tobytes() == one[0].tobytes() for average in one), name
        assert np.isfinite(one[0]).all(), name


def check_nothing_is_lost(
    loop: Loopback,
    beta: float = 1.0,
    gamma: float = 1.0,
    shapes: Mapping[str, Shape] = SHAPES,
    atol: float = 3e-4,
) -> None:
    """Check over three steps that sum(corrected) = ranks * average + sum(residuals)."""
    ranks = len(loop.ranks)
    kept = {name: np.zeros(shape) for name, shape in shapes.items()}
    for step in range(3):
        grads = gradients(ranks, step, shapes)
        found = loop.step(grads)
        check_replicas(found)
        for name, averages in found.items():
            corrected = beta * kept[name] + gamma * np.sum(grads[name], axis=0, dtype=np.float64)
            residuals = [rank.state_dict()["residual"][name] for rank in loop.ranks]
            kept[name] = np.sum(residuals, axis=0, dtype=np.float64).reshape(shapes[name])
            sent = ranks * averages[0].astype(np.float64)
            np.testing.assert_allclose(sent + kept[name], corrected, rtol=0, atol=atol)
