"""How much of the gradients waits in residuals: error feedback that falls behind is worth a warning."""

from __future__ import annotations

import logging

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.devices import HOST, device_of

__all__ = ["CHECK_EVERY", "Waiting"]

_log = logging.getLogger(__name__)

CHECK_EVERY = 100
"""Steps between two measurements: each reads the gradients and residuals once more."""

_MOST = 1000.0
"""Energy of a residual, in those of a gradient, above which error feedback falls behind."""

_CHECKS = 3
"""Measurements in a row with more than that, for a warning."""


class Waiting:
    """Measures residuals by spec, in one step of `CHECK_EVERY`, as its caller counts.

    Attributes:
        logs: whether to warn.
        found: the latest results: by spec, the energy (sum of squares) of the residuals of its tensors,
            in energies of the gradients of the same step.
    """

    def __init__(self) -> None:
        self.logs = False
        self.found: dict[str, float] = {}
        self._step = 0
        self._energies: dict[str, list[float]] = {}
        self._behind: dict[str, int] = {}

    @property
    def behind(self) -> list[str]:
        """The specs with error feedback that falls behind, by the latest measurements."""
        return [spec for spec, checks in self._behind.items() if checks >= _CHECKS]

    def look(self, step: int, spec: str, grad: FloatArray, residual: FloatArray) -> None:
        """Measure a tensor before its round in one of those steps.

        Args:
            step, spec: of the tensor.
            grad, residual: of the tensor; only arrays on the host are measured.
        """
        if device_of(grad) is not HOST or device_of(residual) is not HOST:
            return
        if step != self._step:
            self._energies = {}
            self._step = step
        sums = self._energies.setdefault(spec, [0.0, 0.0])
        for place, array in enumerate((residual, grad)):
            sums[place] += _core.l2_norm(array.reshape(-1)) ** 2
        if sums[1] > 0:
            self.found[spec] = sums[0] / sums[1]

    def end_step(self) -> None:
        """End a step; the first call after a measurement may warn."""
        if not self._energies:
            return
        for spec in self._energies:
            found = self.found.get(spec, 0.0)
            behind = self._behind.get(spec, 0) + 1 if found > _MOST else 0
            self._behind[spec] = behind
            if behind == _CHECKS and self.logs:
                _log.warning(
                    "gradcomp: error feedback of '%s' falls behind: its residuals have had more than %g "
                    "times the energy of a gradient for %d steps, %.3g times in step %d, and what waits that "
                    "long comes too late: send more, or lower the learning rate",
                    spec,
                    _MOST,
                    (_CHECKS - 1) * CHECK_EVERY,
                    found,
                    self._step,
                )
        self._energies = {}
