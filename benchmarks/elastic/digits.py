"""The task of the workers of elastic jobs: a 64-512-512-10 perceptron learns scikit-learn's digits."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

HELD_OUT = 360
BATCH = 60
"""Samples of a step; 1, 2, 3 or 4 ranks share them equally."""
RATE = 0.05
MOMENTUM = 0.9
STOCK = "stock"
"""Stands for a spec: Horovod without any compression."""

Floats = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]


class Training(Protocol):
    """A perceptron that learns with one of the frameworks."""

    hvd: Any
    state: Any

    def step(self, inputs: Floats, classes: Classes) -> tuple[list[Floats], list[Floats]]:
        """Make a step; returns the rank's gradients, and the averages that the optimizer got."""

    def parameters(self) -> list[Floats]:
        """All parameters."""

    def unsent(self, part: str) -> list[Floats | None]:
        """Residuals, or momenta, that the compression has for the parameters."""

    def logits(self, inputs: Floats) -> Floats:
        """The results for inputs."""

    def of_first(self, value: float) -> float:
        """The value of rank 0."""


def outer_momentum(spec: str) -> float:
    """The optimizer's momentum: DGC has its own."""
    return 0.0 if spec.startswith("dgc") else MOMENTUM


def digits() -> tuple[Floats, Classes]:
    """Inputs in [0, 1] and classes, in an order of their own; the first are held out."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return (data.data[order] / 16).astype(np.float32), data.target[order].astype(np.int64)


def samples(seed: int, step: int, rank: int, size: int, total: int) -> npt.NDArray[np.int64]:
    """A rank's samples of a step; those of all ranks are the same for any number of ranks."""
    drawn = np.random.default_rng([seed, step]).integers(HELD_OUT, total, BATCH)
    return drawn[rank::size]
