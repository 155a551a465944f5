"""Mixed precision: memories in units of the scaled loss, and steps that every rank skips."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.devices import Device, device_of
from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError
from gradcomp.exchange.memory import (
    ESTIMATE,
    ESTIMATE_MEAN,
    ESTIMATE_ROWS,
    NORM,
    MemoryState,
)
from gradcomp.exchange.select import exchange_pattern
from gradcomp.runtime.state.step_copies import Before, StepCopies

__all__ = ["LossScale", "check_scale", "check_sends_nan", "poisoned"]

_SCALED_KINDS = ("residual", "momentum", NORM, ESTIMATE, ESTIMATE_MEAN, ESTIMATE_ROWS)
"""Kinds of state that are proportional to the gradient."""


class LossScale:
    """Factor of the loss, to which memories belong.

    Args:
        arrays: by kind, then by tensor name.
        copies: of the arrays before the present step.

    Attributes:
        scale: the present factor; 1 until `set`.
        active: `set` was called: rounds must copy what they change.
    """

    def __init__(self, arrays: MemoryState, copies: StepCopies) -> None:
        self.scale = 1.0
        self.active = False
        self._arrays = arrays
        self._copies = copies

    def set(self, scale: float) -> dict[str, Before]:
        """Begin a step with this factor. A smaller factor means that the last step was skipped.

        Returns:
            After a skipped step: by tensor name, the numbers from before it.

        Raises:
            ConfigError: the factor is not a positive number.
        """
        check_scale(scale)
        restored = self._copies.put_back() if scale < self.scale else {}
        self._copies.begin()
        factor = float(np.float32(scale / self.scale))
        if factor != 1:
            self._multiply(factor)
        self.scale, self.active = float(scale), True
        return restored

    def _multiply(self, factor: float) -> None:
        of_devices: dict[Device, list[FloatArray]] = {}
        for kind in _SCALED_KINDS:
            for array in self._arrays[kind].values():
                of_devices.setdefault(device_of(array), []).append(array)
        for device, arrays in of_devices.items():
            device.scale(arrays, factor)

    def load(self, scale: float) -> None:
        """Continue with arrays that were saved under this factor."""
        self._copies.begin()
        self.scale = scale


def check_scale(scale: float) -> None:
    """Check a factor of the loss.

    Raises:
        ConfigError: it is not a positive number.
    """
    if not (math.isfinite(scale) and scale > 0):
        raise ConfigError(f"the loss scale is {scale}; it must be above 0 and finite")


def poisoned(grads: Sequence[FloatArray]) -> list[FloatArray]:
    """The gradients; each all NaN if any of its elements is not finite.

    Codecs that send some elements only then send NaN too, so that the average is not finite on
    any rank, and every rank skips the step.
    """
    of_devices: dict[Device, list[int]] = {}
    for place, grad in enumerate(grads):
        of_devices.setdefault(device_of(grad), []).append(place)
    found = list(grads)
    for device, places in of_devices.items():
        checked = device.poison([grads[place] for place in places])
        for place, grad in zip(places, checked, strict=True):
            found[place] = grad
    return found


def check_sends_nan(config: Config) -> None:
    """Refuse exchanges that may lose a NaN, and results that do not scale with the loss.

    Raises:
        ConfigError: a spec has such an exchange: sra chooses random elements of random elements;
            or it gives steps of an optimizer.
    """
    config.check_averages(
        "gives steps that do not scale with the loss, so that unscaling would shrink them: train in "
        "bfloat16, without a loss scale"
    )
    for _, spec, exchange in config.compress.choices:
        if "sra" in exchange_pattern(spec, exchange) and spec.first_codec.startswith("random"):
            raise ConfigError(
                f"'{spec}' with exchange {exchange} may lose a NaN, and ranks would then disagree "
                "about skipping a step of mixed precision: use exchange auto"
            )
