"""Learning rates of tensors, for residuals that are measured in units of parameter updates."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.errors import ConfigError

__all__ = ["LEAST_RATE", "Rates"]

LEAST_RATE = 1e-12
"""Rates below this count as 0: schedules end there by rounding, and quotients stay finite."""

_LARGEST_RATE = 1e12


class Rates:
    """The present learning rates, float32: one for all tensors, or one for each name."""

    def __init__(self) -> None:
        self._rates: float | dict[str, float] | None = None

    def set(self, lr: float | Mapping[str, float]) -> None:
        """Replace all rates.

        Raises:
            ConfigError: a rate is negative, above 1e12, or not a number.
        """
        if isinstance(lr, Mapping):
            self._rates = {name: _checked(value, f" of '{name}'") for name, value in lr.items()}
        else:
            self._rates = _checked(lr, "")

    def of(self, name: str) -> float:
        """The rate of a tensor; 0 if it is below `LEAST_RATE`.

        Raises:
            ConfigError: the rate is unknown.
        """
        rates = self._rates
        rate = rates.get(name) if isinstance(rates, dict) else rates
        if rate is None:
            raise ConfigError(
                f"the residual of '{name}' is scaled by the learning rate (lr=scale), which is "
                "unknown: call set_lr(lr) before each step, or give the adapter the optimizer"
            )
        return rate

    def factor(self, name: str, last: FloatArray | None) -> float:
        """Factor of a residual: its last rate over the present one.

        1 if no rate is known for the residual, or the present rate is 0.
        """
        rate = self.of(name)
        return 1.0 if last is None or rate == 0 else float(last[0]) / rate

    def advance(self, name: str, last: dict[str, FloatArray]) -> float:
        """Factor of a residual in this step; the rate of this step replaces the one in ``last``."""
        factor = self.factor(name, last.get(name))
        last[name] = np.array([self.of(name)], np.float32)
        return factor


def _checked(lr: float, of_tensor: str) -> float:
    rate = float(lr)
    if not (math.isfinite(rate) and 0 <= rate <= _LARGEST_RATE):
        raise ConfigError(
            f"the learning rate{of_tensor} is {rate}; it must be in [0, {_LARGEST_RATE:g}]"
        )
    return 0.0 if rate < LEAST_RATE else float(np.float32(rate))
