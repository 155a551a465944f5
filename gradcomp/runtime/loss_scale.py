"""Mixed precision: memories in units of the scaled loss, and steps that every rank skips."""

from __future__ import annotations

import math

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError
from gradcomp.exchange.memory import Arrays, MemoryState
from gradcomp.exchange.select import exchange_pattern

__all__ = ["LossScale", "check_scale", "check_sends_nan", "poisoned"]

_SCALED_KINDS = ("residual", "momentum")
"""Kinds of state that are proportional to the gradient."""


class LossScale:
    """Factor of the loss, and copies of the arrays that the present step changes.

    Args:
        arrays: by kind, then by tensor name.

    Attributes:
        scale: the present factor; 1 until `set`.
        active: `set` was called: rounds must call `keep`.
    """

    def __init__(self, arrays: MemoryState) -> None:
        self.scale = 1.0
        self.active = False
        self._arrays = arrays
        self._kept: dict[str, tuple[str | None, Arrays]] = {}

    def keep(self, name: str, spec: str | None) -> None:
        """Copy a tensor's arrays before a round changes them.

        Args:
            spec: the tensor's spec of the last round; None before the first.
        """
        old = self._kept[name][1] if name in self._kept else {}
        copies: Arrays = {}
        for kind, arrays in self._arrays.items():
            array, copy = arrays.get(name), old.get(kind)
            if array is None:
                continue
            if copy is None or copy.size != array.size:
                copy = np.empty_like(array)
            np.copyto(copy, array)
            copies[kind] = copy
        self._kept[name] = (spec, copies)

    def set(self, scale: float) -> dict[str, str | None]:
        """Begin a step with this factor. A smaller factor means that the last step was skipped.

        Returns:
            After a skipped step: the specs, by tensor name, to which the arrays now belong.

        Raises:
            ConfigError: the factor is not a positive number.
        """
        check_scale(scale)
        restored: dict[str, str | None] = {}
        if scale < self.scale:
            for name, (spec, copies) in self._kept.items():
                restored[name] = spec
                for kind, arrays in self._arrays.items():
                    arrays.pop(name, None)
                    if kind in copies:
                        arrays[name] = copies[kind]
        self._kept.clear()
        factor = np.float32(scale / self.scale)
        if factor != 1:
            for kind in _SCALED_KINDS:
                for array in self._arrays[kind].values():
                    array *= factor
        self.scale, self.active = float(scale), True
        return restored

    def load(self, scale: float) -> None:
        """Continue with arrays that were saved under this factor."""
        self._kept.clear()
        self.scale = scale


def check_scale(scale: float) -> None:
    """Check a factor of the loss.

    Raises:
        ConfigError: it is not a positive number.
    """
    if not (math.isfinite(scale) and scale > 0):
        raise ConfigError(f"the loss scale is {scale}; it must be above 0 and finite")


def poisoned(grad: FloatArray) -> FloatArray:
    """The gradient; all NaN if any element is not finite.

    Codecs that send some elements only then send NaN too, so that the average is not finite on
    any rank, and every rank skips the step.
    """
    if grad.size == 0 or (math.isfinite(grad.max()) and math.isfinite(grad.min())):
        return grad
    return np.full_like(grad, np.nan)


def check_sends_nan(config: Config) -> None:
    """Refuse exchanges that may lose a NaN, and results that do not scale with the loss.

    Raises:
        ConfigError: a spec has such an exchange: sra chooses random elements of random elements;
            or it gives steps of an optimizer.
    """
    if config.step_algorithm is not None:
        raise ConfigError(
            f"'{config.step_algorithm.text}' gives steps that do not scale with the loss, so that unscaling "
            "would shrink them: train in bfloat16, without a loss scale"
        )
    for _, spec, exchange in config.compress.choices:
        if "sra" in exchange_pattern(spec, exchange) and spec.first_codec.startswith("random"):
            raise ConfigError(
                f"'{spec}' with exchange {exchange} may lose a NaN, and ranks would then disagree "
                "about skipping a step of mixed precision: use exchange auto"
            )
