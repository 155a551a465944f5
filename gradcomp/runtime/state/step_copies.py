"""Copies of the state that a step changes, so that the step can be taken back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.devices import Device, device_of
from gradcomp.exchange.memory import Arrays, MemoryState

__all__ = ["Before", "StepCopies"]


class Before(NamedTuple):
    """A tensor's numbers before a step."""

    spec: str | None
    """Spec of its last round; None before the first."""

    rounds: int
    """Number of its averages."""


class StepCopies:
    """Copies of a rank's arrays from before the present step, on the arrays' own devices.

    Args:
        arrays: by kind, then by tensor name.
    """

    def __init__(self, arrays: MemoryState) -> None:
        self._arrays = arrays
        self._before: dict[str, Before] = {}
        # Of earlier steps, too: their memory is used again.
        self._copies: dict[str, Arrays] = {}

    @property
    def kept(self) -> bool:
        """Whether a tensor has copies from before the present step."""
        return bool(self._before)

    def begin(self) -> None:
        """Begin a step: what earlier steps have changed stays."""
        self._before.clear()

    def keep(self, before: Mapping[str, Before]) -> None:
        """Copy the arrays of tensors, before the step's first round changes them."""
        of_devices: dict[Device, list[tuple[FloatArray, FloatArray]]] = {}
        for name, numbers in before.items():
            if name in self._before:
                continue
            self._before[name] = numbers
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

    def put_back(self, names: Iterable[str] | None = None) -> dict[str, Before]:
        """Give tensors the arrays that they had before the step.

        Args:
            names: of tensors; those without copies of this step are left out. None: all with copies.

        Returns:
            By name, the numbers of each tensor that has its arrays back.
        """
        chosen = list(self._before) if names is None else list(names)
        restored = {name: self._before.pop(name) for name in chosen if name in self._before}
        for name in restored:
            copies = self._copies.pop(name)
            for kind, arrays in self._arrays.items():
                arrays.pop(name, None)
                if kind in copies:
                    arrays[name] = copies[kind]
        return restored
