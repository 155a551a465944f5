"""Algorithm 1 of Dion's paper in float64, for all ranks together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.codec import derive_stream
from gradcomp.exchange.rounds import TensorKey

__all__ = ["Reference"]

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
        draws = _core.uniform_signed(stream, rank * shape[1])
        self._q: Array = draws.reshape(rank, shape[1]).T.astype(np.float64)
        self._scale = math.sqrt(shape[0] / shape[1])
        self._momentum = momentum
        self.momenta: list[Array] = [np.zeros(shape)] * ranks

    def step(self, grads: Sequence[npt.NDArray[Any]]) -> Array:
        """The step; its learning rate is 1."""
        added = [m + grad for m, grad in zip(self.momenta, grads, strict=True)]
        p = np.linalg.qr(np.mean([m @ self._q for m in added], axis=0))[0]
        r = np.mean([m.T @ p for m in added], axis=0)
        self.momenta = [m - (1 - self._momentum) * p @ r.T for m in added]
        self._q = r / np.linalg.norm(r, axis=0)
        step: Array = self._scale * p @ self._q.T
        return step
