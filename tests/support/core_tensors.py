"""A device of torch whose kernels are the core itself, on CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.frame import split_frames
from gradcomp.codec.items import ToAddShared, ToDecode, ToEncode
from support.core_device import CoreDevice
from torch_compressors.devices import TensorArray
from torch_compressors.shared.direct import DeviceMessage
from torch_compressors.shared.staging import Staging


class CoreTensors(CoreDevice):
    """As `CoreDevice`, for adapters that hand over tensors.

    Messages from device to device are the core's frames, so codecs must give all ranks' frames one size.
    """

    def __init__(self, least: int = 0) -> None:
        super().__init__(least)
        self._direct = False
        self._staging = Staging(torch.device("cpu"))

    def begin_direct(self, place: torch.device) -> CoreTensors:
        """Send messages to other devices from now on."""
        self._direct = True
        return self

    def shares(self, tensors: Sequence[ToEncode]) -> bool:
        return self._direct and all(isinstance(tensor.grad, TensorArray) for tensor in tensors)

    def share(self, name: str, tensors: Sequence[ToEncode]) -> Any:
        self.log.append(f"share {len(tensors)}")
        frames, _ = self.encode(tensors)()
        return DeviceMessage(torch.from_numpy(frames.copy()), self._staging)

    def add_shared(
        self, own: Any, tensors: Sequence[ToAddShared], messages: Sequence[Any], weight: float
    ) -> None:
        self.log.append(f"add {len(messages)} messages")
        of_ranks = [split_frames(one.data.numpy(), len(tensors)) for one in messages]
        self.decode_add(
            [
                ToDecode("", tensor.codec, frames, tensor.out)
                for tensor, *frames in zip(tensors, *of_ranks, strict=True)
            ],
            weight,
        )

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
    found = mock.Mock(return_value=device if here else None)
    with ExitStack() as patches:
        for module in (adapter, "torch_compressors.direct"):
            patches.enter_context(mock.patch(f"{module}.device_for", found))
        direct = mock.Mock(side_effect=device.begin_direct)
        patches.enter_context(mock.patch("torch_compressors.ddp.direct_device", direct))
        yield device
