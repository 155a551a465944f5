"""Gradients on devices: their arrays for rounds, and copies on the host where no kernel takes them.

Not run on any GPU so far: on CPU tensors the same code runs, without pinned memory and events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from gradcomp.adapter_api import Device, DeviceArray, FloatArray

__all__ = ["HostCopies", "TensorArray", "TensorDevice"]


class TensorArray(DeviceArray):
    """A contiguous float32 tensor as the array of a device.

    Raises:
        TypeError: the tensor is of another dtype, or not contiguous.
    """

    def __init__(self, device: Device, tensor: torch.Tensor) -> None:
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise TypeError(
                f"a tensor of {tensor.dtype} and strides {tensor.stride()} is no array of a device: "
                "it must be contiguous float32"
            )
        self.device = device
        self.tensor = tensor
        self.shape = tuple(tensor.shape)
        self.size = tensor.numel()
        self.nbytes = 4 * self.size

    def reshape(self, shape: int | tuple[int, ...]) -> Any:
        """A view of another shape; -1 for a flat one."""
        return TensorArray(self.device, self.tensor.reshape(shape))


class TensorDevice(Device, Protocol):
    """A device whose arrays are tensors."""

    def array(self, tensor: torch.Tensor) -> FloatArray:
        """A contiguous float32 tensor of this device, without a copy."""
        ...


class HostCopies:
    """Copies of some gradients of a bucket on the host, of which one is made for each dtype.

    Nothing waits for the copies until `wait`.

    Args:
        tensors: flat tensors of one device, by name.

    Attributes:
        arrays: the copies, flat, by name; without content before `wait`.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.arrays: dict[str, torch.Tensor] = {}
        self._together: list[tuple[list[str], torch.Tensor]] = []
        self._copied: torch.Event | None = None
        by_dtype: dict[torch.dtype, list[str]] = {}
        for name, tensor in tensors.items():
            by_dtype.setdefault(tensor.dtype, []).append(name)
        for names in by_dtype.values():
            flats = [tensors[name] for name in names]
            together = torch.cat(flats)
            pinned = together.device.type != "cpu"
            host = torch.empty(together.shape, dtype=together.dtype, pin_memory=pinned)
            host.copy_(together, non_blocking=True)
            if pinned:
                self._copied = torch.Event(together.device)
                self._copied.record()
            parts = torch.split(host, [flat.numel() for flat in flats])
            self.arrays.update(zip(names, parts, strict=True))
            self._together.append((names, host))

    def wait(self) -> None:
        """Wait for the copies."""
        if self._copied is not None:
            self._copied.synchronize()

    def give_back(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Start to copy the arrays, which are averages now, into the gradients."""
        for names, host in self._together:
            targets = [gradients[name] for name in names]
            there = host.to(targets[0].device, non_blocking=True)
            sizes = [target.numel() for target in targets]
            for target, average in zip(targets, torch.split(there, sizes), strict=True):
                target.copy_(average.view(target.shape))
