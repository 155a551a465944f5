"""Synthetic gradients, and the step of training at which tools measure."""

from __future__ import annotations

import numpy as np

from gradcomp.codec.arrays import FloatArray

__all__ = ["LATE_STEP", "synthetic_gradients"]

LATE_STEP = 1_000_000
"""A step and epoch after all warm-ups."""


def synthetic_gradients(
    rng: np.random.Generator, shape: tuple[int, ...], workers: int
) -> list[FloatArray]:
    """One tensor's gradients on all ranks: a normal tensor that all share, plus one of each rank."""
    shared = rng.standard_normal(shape, np.float32)
    return [shared + rng.standard_normal(shape, np.float32) for _ in range(workers)]
