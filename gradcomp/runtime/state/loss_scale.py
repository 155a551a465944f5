"""Mixed precision: memories in units of the scaled loss, and steps that every rank skips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.devices import Device, device_of
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
        self._specs: dict[str, str | None] = {}
        # Of earlier steps, too: their memory is used again.
        self._copies: dict[str, Arrays] = {}

    def keep(self, specs: Mapping[str, str | None]) -> None:
        """Copy the arrays of tensors on their devices, before a round changes them.

        Args:
            specs: by name, the spec of each tensor's last round; None before the first.
        """
        of_devices: dict[Device, list[tuple[FloatArray, FloatArray]]] = {}
        for name, spec in specs.items():
            self._specs[name] = spec
            rooms, copies = self._copies.get(name, {}), {}
            for kind, arrays in self._arrays.items():
                array, copy = arrays.get(name), rooms.get(kind)
                if array is None:
                    continue
                device = device_of(array)
                if copy is None or copy.size != array.size or device_of(copy) is not device:
                    copy = device.zeros(array.size)
                copies[kind] = copy
                of_devices.setdefault(device, []).append((array.reshape(-1), copy))
            self._copies[name] = copies
        for device, pairs in of_devices.items():
            device.copy(pairs)

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
            restored = dict(self._specs)
            for name in restored:
                copies = self._copies.pop(name)
                for kind, arrays in self._arrays.items():
                    arrays.pop(name, None)
                    if kind in copies:
                        arrays[name] = copies[kind]
        self._specs.clear()
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
        self._specs.clear()
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
