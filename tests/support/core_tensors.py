"""A device of torch whose kernels are the core itself, on CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch

from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.devices import SharingDevice
from gradcomp.codec.frame import split_frames
from gradcomp.codec.items import ToAddShared, ToDecode, ToEncode
from gradcomp.codec.parts import payloads_of_frames
from support.core_device import CoreDevice
from torch_compressors.devices import TensorArray
from torch_compressors.shared.direct import DeviceMessage
from torch_compressors.shared.staging import Staging

NOTHING = np.empty(0, np.uint8)


@dataclass(frozen=True)
class _Messages(DeviceMessage):
    splits: list[int]
    groups: Sequence[Sequence[ToEncode]]

    @property
    def numbers(self) -> DeviceMessage:
        (tensors,) = self.groups
        frames = split_frames(self.data.numpy(), len(tensors))
        given = [
            (one.codec, frame, one.grad.size) for one, frame in zip(tensors, frames, strict=True)
        ]
        halves = [one.data.view(np.float16) for one in payloads_of_frames(given)]
        return DeviceMessage(torch.from_numpy(np.concatenate(halves)), self.staging)


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

    def sharing(self, codec: str) -> SharingDevice | None:
        return self if self._direct else None

    def share(self, name: str, groups: Sequence[Sequence[ToEncode]], size: int = 0) -> Any:
        self.log.append(f"share {len(groups)}")
        messages = [self.encode(tensors)()[0] if tensors else NOTHING for tensors in groups]
        splits = [message.size for message in messages]
        filling = np.zeros(max(size - sum(splits), 0), np.uint8)
        data = torch.from_numpy(np.concatenate([*messages, filling]))
        return _Messages(data, self._staging, splits, groups)

    def add_shared(
        self,
        own: Any,
        group: int,
        tensors: Sequence[ToAddShared],
        messages: Sequence[Any],
        weight: float,
    ) -> None:
        self.log.append(f"add {len(messages)} messages")
        size = own.splits[group]
        of_ranks = [split_frames(one.data.numpy()[:size], len(tensors)) for one in messages]
        self.decode_add(
            [
                ToDecode("", tensor.codec, frames, tensor.out, replaces=True)
                for tensor, *frames in zip(tensors, *of_ranks, strict=True)
            ],
            weight,
        )

    def decode_shared(
        self, own: Any, groups: Sequence[Sequence[ToAddShared]], messages: Sequence[Any]
    ) -> None:
        for size, tensors, message in zip(own.splits, groups, messages, strict=True):
            frames = split_frames(message.data.numpy()[:size], len(tensors))
            for tensor, frame in zip(tensors, frames, strict=True):
                tensor.codec.decode(frame, self._elements(tensor.out))

    def decode_numbers(self, own: Any, tensors: Sequence[ToAddShared], numbers: Any) -> None:
        self.log.append("decode numbers")
        halves = numbers.data.numpy()
        ends = np.cumsum([tensor.out.size for tensor in tensors])
        for tensor, part in zip(tensors, np.split(halves, ends[:-1]), strict=True):
            tensor.codec.decode_payload(part, part.size, out=self._elements(tensor.out))

    def add_lost(self, residual: FloatArray, lost: FloatArray, times: float) -> None:
        elements = self._elements(residual)
        elements += np.float32(times) * self._elements(lost)

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
