"""Dion (algorithm 1 of its paper) and Dion2 in float64, for all ranks together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.codec import derive_stream
from gradcomp.exchange.algorithms.polar_factor import COEFFICIENTS
from gradcomp.exchange.rounds import TensorKey

__all__ = ["Reference", "Reference2"]

Array = npt.NDArray[np.float64]


class Reference:
    """One matrix on all ranks; orthonormal bases are those of numpy's QR.

    Args:
        name: of the tensor, from which the first Q is drawn, with the seed 0.

    Attributes:
        momenta: M of each rank.
    """

    def __init__(
        self, ranks: int, name: str, shape: tuple[int, int], rank: int, momentum: float = 0.95
    ) -> None:
        stream = derive_stream(0, 0, TensorKey(name, shape, 0).tensor_id)
        draws = _core.uniform_signed(stream, rank * min(shape))
        self._q: Array = draws.reshape(rank, min(shape)).T.astype(np.float64)
        self._wide = shape[0] < shape[1]
        self._scale = math.sqrt(shape[0] / shape[1])
        self._momentum = momentum
        self.momenta: list[Array] = [np.zeros(shape)] * ranks

    def step(self, grads: Sequence[npt.NDArray[Any]]) -> Array:
        """The step; its learning rate is 1."""
        added = [m + grad for m, grad in zip(self.momenta, grads, strict=True)]
        if self._wide:
            added = [m.T for m in added]
        p = np.linalg.qr(np.mean([m @ self._q for m in added], axis=0))[0]
        r = np.mean([m.T @ p for m in added], axis=0)
        self.momenta = [m - (1 - self._momentum) * p @ r.T for m in added]
        self._q = r / np.linalg.norm(r, axis=0)
        step: Array = self._scale * p @ self._q.T
        if not self._wide:
            return step
        self.momenta = [m.T for m in self.momenta]
        return step.T


class Reference2:
    """Dion2 of one matrix on all ranks.

    Attributes:
        momenta: M of each rank.
    """

    def __init__(
        self, ranks: int, shape: tuple[int, int], chosen: int, momentum: float = 0.95
    ) -> None:
        self._chosen = chosen
        self._scale = math.sqrt(shape[0] / shape[1])
        self._axis = 0 if shape[0] <= shape[1] else 1
        self._momentum = momentum
        self.momenta: list[Array] = [np.zeros(shape)] * ranks

    def step(self, grads: Sequence[npt.NDArray[Any]]) -> Array:
        """The step; its learning rate is 1."""
        added = [m + grad for m, grad in zip(self.momenta, grads, strict=True)]
        norms = np.mean([np.abs(m).sum(axis=1 - self._axis) for m in added], axis=0)
        kept = np.ones(len(norms))
        kept[np.argsort(-norms)[: self._chosen]] = self._momentum
        kept = np.expand_dims(kept, 1 - self._axis)
        step: Array = np.where(kept == 1, 0.0, np.mean(added, axis=0))
        step /= 1.02 * np.linalg.norm(step)
        for a, b, c in COEFFICIENTS:
            product = step @ step.T
            step = a * step + b * product @ step + c * product @ product @ step
        self.momenta = [m * kept for m in added]
        return self._scale * step
