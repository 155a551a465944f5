"""A device of torch whose kernels are the core itself, on CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from gradcomp.codec.arrays import FloatArray
from support.core_device import CoreDevice
from torch_compressors.devices import TensorArray


class CoreTensors(CoreDevice):
    """As `CoreDevice`, for adapters that hand over tensors."""

    def array(self, tensor: torch.Tensor, computed: torch.Event | None = None) -> Any:
        assert computed is None, "the host computes at once"
        return TensorArray(self, tensor)

    def _array(self, elements: FloatArray) -> Any:
        return self.array(torch.from_numpy(elements))

    def _elements(self, array: Any) -> FloatArray:
        assert array.device is self
        elements: FloatArray = array.tensor.numpy()
        return elements


@contextmanager
def found_by(adapter: str, here: bool, least: int = 0) -> Iterator[CoreTensors]:
    """Let the module of an adapter find a device on this rank, or none.

    Args:
        least: the device takes tensors of at least as many elements.
    """
    device = CoreTensors(least)
    with mock.patch(f"{adapter}.device_for", return_value=device if here else None):
        yield device
