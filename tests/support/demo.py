"""DeMo in float64, for all ranks together; the rotation is that of the independent decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder import Rotation

from gradcomp.codec.codec import derive_stream
from gradcomp.exchange.rounds import TensorKey

__all__ = ["Reference"]

Array = npt.NDArray[np.float64]


class Reference:
    """One matrix on all ranks.

    Args:
        name: of the tensor, which decides the rotation.
        signs: one bit for each sent value; its magnitude is the mean of all sent ones.

    Attributes:
        momenta: M of each rank, rotated and flat.
    """

    def __init__(
        self,
        ranks: int,
        name: str,
        shape: tuple[int, int],
        k: int,
        momentum: float = 0.95,
        signs: bool = True,
    ) -> None:
        key = TensorKey(name, shape, shape[0] * shape[1])
        self._rotation = Rotation(key.numel, derive_stream(0, 0, key.tensor_id))
        self._shape = shape
        self._k = k
        self._momentum = momentum
        self._signs = signs
        self.momenta: list[Array] = [np.zeros(key.numel)] * ranks

    def step(self, grads: Sequence[npt.NDArray[Any]]) -> Array:
        """The average of what the ranks sent, rotated back; its sign is the step."""
        total = np.zeros(self.momenta[0].size)
        senders = np.zeros(total.size)
        for rank, grad in enumerate(grads):
            rotated = self._rotation.forward(grad.astype(np.float64).reshape(-1))
            momentum = self._momentum * self.momenta[rank] + rotated
            sent = np.zeros(total.size)
            for begin in range(0, total.size, 4096):
                block = momentum[begin : begin + 4096]
                share = max((block.size * self._k + 2048) // 4096, 1)
                kept = begin + np.argsort(-np.abs(block), kind="stable")[:share]
                sent[kept] = momentum[kept]
            if self._signs:
                sent = np.sign(sent) * np.abs(sent[sent != 0]).mean()
            self.momenta[rank] = momentum - sent
            total += sent
            senders += sent != 0
        average = self._rotation.inverse(total / np.maximum(senders, 1))
        return average.reshape(self._shape)
