"""Gradients on devices: their arrays for rounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from gradcomp.adapter_api import FloatArray
from gradcomp.device_api import Device, DeviceArray
from gradcomp_torch.compat import foreach_copy_

__all__ = [
    "Halves",
    "TensorArray",
    "TensorDevice",
    "array_of",
    "convert",
    "halves_of",
    "tensor_of",
]


class Halves:
    """A gradient of 16 bits, and memory for it as float32, to which it is converted where that is needed.

    Args:
        grad: contiguous, float16 or bfloat16.
        floats: contiguous float32 of the same shape, of any content.
    """

    def __init__(self, grad: torch.Tensor, floats: torch.Tensor) -> None:
        self.grad = grad.reshape(-1)
        self.floats = floats.reshape(-1)
        self.waits = True
        """Whether the elements are in the gradient alone."""

    def take(self) -> bool:
        """Whether the caller has to convert the elements."""
        waits, self.waits = self.waits, False
        return waits


class TensorArray(DeviceArray):
    """A contiguous float32 tensor as the array of a device.

    Args:
        halves: the gradient of 16 bits for which the tensor is; its elements are converted when `tensor` is first
            asked for, on the current stream then.

    Attributes:
        computed: recorded when the device has computed the elements, for a thread that encodes them, which
            has another current stream; None: the current one has computed them.

    Raises:
        TypeError: the tensor is of another dtype, or not contiguous.
    """

    def __init__(
        self,
        device: Device,
        tensor: torch.Tensor,
        computed: torch.Event | None = None,
        halves: Halves | None = None,
    ) -> None:
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise TypeError(
                f"a tensor of {tensor.dtype} and strides {tensor.stride()} is not an array of a device: "
                "it must be contiguous float32"
            )
        self.device = device
        self._floats = tensor
        self._halves = halves
        self.computed = computed
        self.shape = tuple(tensor.shape)
        self.size = tensor.numel()
        self.nbytes = 4 * self.size
        self._views: dict[int | tuple[int, ...], TensorArray] = {}
        self._parts: dict[tuple[int | None, ...], TensorArray] = {}

    @property
    def tensor(self) -> torch.Tensor:
        """The elements as float32."""
        if self._halves is not None:
            convert([self])
        return self._floats

    @property
    def given(self) -> torch.Tensor:
        """The elements in memory: those of 16 bits that wait to be converted, else as float32."""
        halves = self._halves
        if halves is None or not halves.waits:
            return self._floats
        begin = self._floats.storage_offset() - halves.floats.storage_offset()
        return halves.grad[begin : begin + self.size].view(self.shape)

    @property
    def converts(self) -> bool:
        """Whether `tensor` would convert elements of 16 bits now."""
        return self._halves is not None and self._halves.waits

    @property
    def memory(self) -> list[torch.Tensor]:
        """Where the elements are, and where they will be when they have been converted."""
        return [self._floats] if self.given is self._floats else [self._floats, self.given]

    def discard(self) -> None:
        """The elements are no longer needed: `tensor` is memory that the caller overwrites."""
        if self._halves is not None:
            self._halves.take()

    def reshape(self, shape: int | tuple[int, ...]) -> Any:
        """A view of another shape; -1 for a flat one. The same object each time: views take microseconds."""
        view = self._views.get(shape)
        if view is None:
            floats = self._floats.reshape(shape)
            view = TensorArray(self.device, floats, self.computed, self._halves)
            self._views[shape] = view
        return view

    def __getitem__(self, elements: slice) -> Any:
        """A view of consecutive elements of a flat array; the same object each time."""
        place = elements.start, elements.stop, elements.step
        part = self._parts.get(place)
        if part is None:
            part = TensorArray(self.device, self._floats[elements], self.computed, self._halves)
            self._parts[place] = part
        return part


def convert(arrays: Iterable[object]) -> None:
    """Convert gradients of 16 bits that wait for it, together, on the current stream."""
    halves = [each for each in halves_of(arrays) if each.take()]
    if halves:
        foreach_copy_([each.floats for each in halves], [each.grad for each in halves])


def halves_of(arrays: Iterable[object]) -> list[Halves]:
    """The gradients of 16 bits for which arrays are, if any."""
    given = [array_of(array)._halves for array in arrays]
    return [each for each in given if each is not None]


class TensorDevice(Device, Protocol):
    """A device with tensors as its arrays."""

    def array(
        self,
        tensor: torch.Tensor,
        computed: torch.Event | None = None,
        halves: Halves | None = None,
    ) -> FloatArray:
        """A contiguous float32 tensor of this device, without a copy; see `TensorArray`."""
        ...


def array_of(array: object) -> TensorArray:
    """An array that a device of torch has made."""
    assert isinstance(array, TensorArray)  # other devices' arrays are not given to those of torch
    return array


def tensor_of(array: object) -> torch.Tensor:
    """The tensor of an array that a device of torch has made."""
    return array_of(array).tensor
