"""Norms and errors of a rank's compression by spec, measured in single steps: for metrics."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.codec import get_codec
from gradcomp.codec.devices import HOST, device_of
from gradcomp.codec.spec import Spec

__all__ = ["Sample", "Samples"]

_MOST = 2**20
"""Elements of a tensor that are encoded for its error; of larger ones the first rows."""


class Sample(NamedTuple):
    """One spec's tensors on this rank in one step; see `Samples`.

    Attributes:
        grad_norm: L2 norm of their gradients.
        residual_norm: L2 norm of their residuals before the step; 0 without error feedback.
        error: squared error of the encoded gradient (plus residual) of the spec's largest tensor, over its
            squared norm; None where no codec alone makes it.
    """

    grad_norm: float
    residual_norm: float
    error: float | None


class Samples:
    """Measures gradients on the host, in one step of ``every``.

    An error needs no exchange: the largest tensor of each spec is encoded and decoded once more, apart from
    the step, at most 2^20 elements of it. Algorithms and memories other than ``residual`` have none.

    Attributes:
        every: steps between two measurements; 0 for none.
    """

    def __init__(self) -> None:
        self.every = 0
        self._step = -1
        self._energies: dict[str, tuple[float, float]] = {}
        self._errors: dict[str, float] = {}
        self._largest: dict[str, tuple[int, str]] = {}

    @property
    def found(self) -> dict[str, Sample]:
        """The latest measurement, by canonical spec."""
        return {
            spec: Sample(math.sqrt(grad), math.sqrt(residual), self._errors.get(spec))
            for spec, (grad, residual) in self._energies.items()
        }

    def look(
        self, step: int, spec: Spec, name: str, grad: FloatArray, residual: FloatArray | None
    ) -> None:
        """Measure a tensor before its round, if its step is due."""
        if not self.every or step % self.every or spec.canonical == "identity":
            return
        if device_of(grad) is not HOST or (
            residual is not None and device_of(residual) is not HOST
        ):
            return
        if step != self._step:
            self._energies, self._errors, self._step = {}, {}, step
        before = self._energies.get(spec.canonical, (0.0, 0.0))
        energies = [
            0.0 if array is None else _core.l2_norm(array.reshape(-1)) ** 2
            for array in (grad, residual)
        ]
        self._energies[spec.canonical] = before[0] + energies[0], before[1] + energies[1]
        largest = self._largest.get(spec.canonical, (0, name))
        self._largest[spec.canonical] = max(largest, (grad.size, name))
        if self._largest[spec.canonical][1] == name:
            self._encode(step, spec, grad, residual)

    def _encode(self, step: int, spec: Spec, grad: FloatArray, residual: FloatArray | None) -> None:
        if spec.algorithm is not None or spec.by_epochs:
            return
        if spec.memory is not None and spec.memory.name != "residual":
            return
        rows = grad.reshape(grad.shape[0], -1) if grad.ndim > 1 else grad.reshape(-1, 1)
        values = np.array(rows[: max(1, _MOST // rows.shape[1])])
        if residual is not None:
            values += residual[: values.size].reshape(values.shape)
        energy = _core.l2_norm(values.reshape(-1)) ** 2
        if not 0 < energy < math.inf:
            return
        codec = get_codec(spec.at(step, 0).codec)
        decoded = codec.decode(codec.encode(values if grad.ndim > 1 else values.reshape(-1)))
        error = _core.l2_norm(decoded - values.reshape(-1)) ** 2
        self._errors[spec.canonical] = error / energy
