"""Gradients on devices: their arrays for rounds."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from gradcomp.adapter_api import FloatArray
from gradcomp.device_api import Device, DeviceArray

__all__ = ["TensorArray", "TensorDevice", "array_of", "tensor_of"]


class TensorArray(DeviceArray):
    """A contiguous float32 tensor as the array of a device.

    Attributes:
        computed: recorded when the device has computed the elements, for a thread that encodes them, which
            has another current stream; None: the current one has computed them.

    Raises:
        TypeError: the tensor is of another dtype, or not contiguous.
    """

    def __init__(
        self, device: Device, tensor: torch.Tensor, computed: torch.Event | None = None
    ) -> None:
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise TypeError(
                f"a tensor of {tensor.dtype} and strides {tensor.stride()} is not an array of a device: "
                "it must be contiguous float32"
            )
        self.device = device
        self.tensor = tensor
        self.computed = computed
        self.shape = tuple(tensor.shape)
        self.size = tensor.numel()
        self.nbytes = 4 * self.size
        self._views: dict[int | tuple[int, ...], TensorArray] = {}

    def reshape(self, shape: int | tuple[int, ...]) -> Any:
        """A view of another shape; -1 for a flat one. The same object each time: views take microseconds."""
        view = self._views.get(shape)
        if view is None:
            view = TensorArray(self.device, self.tensor.reshape(shape), self.computed)
            self._views[shape] = view
        return view

    def __getitem__(self, elements: slice) -> Any:
        """A view of consecutive elements of a flat array."""
        return TensorArray(self.device, self.tensor[elements], self.computed)


class TensorDevice(Device, Protocol):
    """A device with tensors as its arrays."""

    def array(self, tensor: torch.Tensor, computed: torch.Event | None = None) -> FloatArray:
        """A contiguous float32 tensor of this device, without a copy; see `TensorArray`."""
        ...


def array_of(array: object) -> TensorArray:
    """An array that a device of torch has made."""
    assert isinstance(array, TensorArray)  # other devices' arrays are not given to those of torch
    return array


def tensor_of(array: object) -> torch.Tensor:
    """The tensor of an array that a device of torch has made."""
    assert isinstance(array, TensorArray)
    return array.tensor
