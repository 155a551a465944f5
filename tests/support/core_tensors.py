"""A device of torch with the core itself as kernels, on CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch

from gradcomp import _core, get_codec
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.batch_items import DecodeItem, EncodeItem, PeerItem
from gradcomp.codec.codec import Codec
from gradcomp.codec.devices import PeerDevice
from gradcomp.codec.frame import split_frames
from gradcomp.codec.frame_parts import payloads_of_frames
from gradcomp.exchange.algorithms.factor_device import (
    HOST_PRODUCTS,
    ApplyItem,
    FactorDevice,
    MultiplyItem,
    ProductItem,
    SettleItem,
)
from gradcomp.exchange.algorithms.low_rank import is_safe
from gradcomp_torch.device_messages import DeviceMessage
from gradcomp_torch.devices import Halves, TensorArray
from gradcomp_torch.staging import Staging
from support.core_device import CoreDevice

NOTHING = np.empty(0, np.uint8)


@dataclass(frozen=True)
class _Messages(DeviceMessage):
    splits: list[int]
    groups: Sequence[Sequence[EncodeItem]]

    @property
    def numbers(self) -> DeviceMessage:
        (tensors,) = self.groups
        frames = split_frames(self.data.numpy(), len(tensors))
        given = [
            (one.codec, frame, one.grad.size) for one, frame in zip(tensors, frames, strict=True)
        ]
        halves = [one.data.view(np.float16) for one in payloads_of_frames(given)]
        return DeviceMessage(torch.from_numpy(np.concatenate(halves)), self.staging)


@dataclass(frozen=True)
class _Products(DeviceMessage):
    sizes: list[int]
    own: torch.Tensor


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

    def to_peers(self, codec: Codec) -> PeerDevice | None:
        return self if self._direct else None

    def begin_messages(
        self, name: str, groups: Sequence[Sequence[EncodeItem]], size: int = 0
    ) -> Any:
        self.log.append(f"begin {len(groups)} messages")
        messages = [self.encode(tensors)()[0] if tensors else NOTHING for tensors in groups]
        splits = [message.size for message in messages]
        filling = np.zeros(max(size - sum(splits), 0), np.uint8)
        data = torch.from_numpy(np.concatenate([*messages, filling]))
        return _Messages(data, self._staging, splits, groups)

    def add_messages(
        self,
        own_messages: Any,
        group: int,
        tensors: Sequence[PeerItem],
        messages: Sequence[Any],
        weight: float,
        exact: int | None = None,
    ) -> None:
        self.log.append(f"add {len(messages)} messages")
        size = own_messages.splits[group]
        of_ranks = [
            split_frames(one.data.numpy()[:size], len(tensors))
            for rank, one in enumerate(messages)
            if rank != exact
        ]
        self.decode_add(
            [
                DecodeItem("", tensor.codec, frames, tensor.out, replaces=exact is None)
                for tensor, *frames in zip(tensors, *of_ranks, strict=True)
            ],
            weight,
        )

    def decode_messages(
        self, own_messages: Any, groups: Sequence[Sequence[PeerItem]], messages: Sequence[Any]
    ) -> None:
        for size, tensors, message in zip(own_messages.splits, groups, messages, strict=True):
            frames = split_frames(message.data.numpy()[:size], len(tensors))
            for tensor, frame in zip(tensors, frames, strict=True):
                tensor.codec.decode(frame, self._elements(tensor.out))

    def decode_numbers(self, own_messages: Any, tensors: Sequence[PeerItem], numbers: Any) -> None:
        self.log.append("decode numbers")
        halves = numbers.data.numpy()
        ends = np.cumsum([tensor.out.size for tensor in tensors])
        for tensor, part in zip(tensors, np.split(halves, ends[:-1]), strict=True):
            tensor.codec.decode_payload(part, part.size, out=self._elements(tensor.out))

    def add_lost(self, residual: FloatArray, lost: FloatArray, times: float) -> None:
        elements = self._elements(residual)
        elements += np.float32(times) * self._elements(lost)

    def factor_device(self) -> FactorDevice | None:
        return self if self._direct else None

    def begin_products(self, name: str, matrices: Sequence[ProductItem], *, half: bool) -> Any:
        self.log.append(f"begin {len(matrices)} products")
        products = []
        for m, grad, beta, factor, rank, transposed in matrices:
            _core.orthonormalize(self._elements(factor), rank, "gram_schmidt")
            out = np.empty(rank * m.shape[int(transposed)], np.float32)
            given = None if grad is None else self._elements(grad)
            known = self._elements(factor)
            HOST_PRODUCTS.multiply(
                [MultiplyItem(self._elements(m), given, beta, known, transposed, out)]
            )()
            products.append(out)
        codec = get_codec("fp16" if half else "identity")
        own = np.concatenate(products)
        payload = codec.encode_payload(own)
        sent = torch.from_numpy(codec.decode_payload(payload, own.size).copy())
        numbers = torch.from_numpy(payload.copy())
        return _Products(numbers, self._staging, [one.size for one in products], sent)

    def settle(
        self, own_products: Any, average: Any, matrices: Sequence[SettleItem], *, of_average: bool
    ) -> None:
        self.log.append(f"settle {len(matrices)}")
        parts = [
            torch.split(one, own_products.sizes) for one in (own_products.own, average.data.float())
        ]
        for work, product, mean in zip(matrices, *parts, strict=True):
            factor, other = self._elements(work.factor), mean.numpy()
            kept = self._elements(work.kept)
            kept[:] = other
            _core.zero_nonfinite(kept)
            if work.average is None:
                continue
            sent = other if of_average else product.numpy()
            four = (
                (factor, other, factor, sent) if work.transposed else (other, factor, sent, factor)
            )
            m, to = self._elements(work.m), self._elements(work.average)
            HOST_PRODUCTS.apply([ApplyItem(m, to, work.begun, *four, is_safe(sent))])

    def array(
        self,
        tensor: torch.Tensor,
        computed: torch.Event | None = None,
        halves: Halves | None = None,
    ) -> Any:
        assert computed is None, "the host computes at once"
        return TensorArray(self, tensor, halves=halves)

    def _array(self, elements: FloatArray) -> Any:
        return self.array(torch.from_numpy(elements))

    def _elements(self, array: Any) -> FloatArray:
        assert array.device is self
        elements: FloatArray = array.tensor.numpy()
        return elements


@contextmanager
def found(here: bool, least: int = 0) -> Iterator[CoreTensors]:
    """Let adapters find a device on this rank, or none.

    Args:
        least: the device takes tensors of at least as many elements.
    """
    device = CoreTensors(least)
    place = "gradcomp_torch.gpu.device_lookup"
    with ExitStack() as patches:
        known = mock.Mock(return_value=device if here else None)
        patches.enter_context(mock.patch(f"{place}.device_for", known))
        direct = mock.Mock(side_effect=device.begin_direct)
        patches.enter_context(mock.patch(f"{place}.direct_device", direct))
        yield device
