"""Devices: where tensors live, and where they are encoded and decoded.

Arrays on the host are numpy's, those of other devices `DeviceArray`. Only code that asks for an array's
device can be given one of another device, so annotations say `FloatArray` for both.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol, TypeAlias

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, CodedArray, FloatArray, room
from gradcomp.codec.batch_items import (
    AdvanceItem,
    DecodeItem,
    DifferItem,
    EncodeItem,
    GiveItem,
    PeerItem,
)
from gradcomp.codec.codec import Codec
from gradcomp.codec.shares import Shares
from gradcomp.codec.spec import Spec, parse
from gradcomp.errors import SpecError
from gradcomp.stopwatch import timed

__all__ = [
    "HOST",
    "Device",
    "DeviceArray",
    "Encoded",
    "PeerDevice",
    "PeerMessages",
    "device_of",
    "peer_device_of",
]

Encoded: TypeAlias = Callable[[], tuple[ByteArray, list[int]]]
"""Waits for frames that a device encodes; returns the result of `encode_batch`."""


class PeerMessages(Protocol):
    """Messages in the memory of a `PeerDevice`, one for each group of tensors, one after the other.

    Their sizes are the same on all ranks.
    """

    @property
    def nbytes(self) -> int:
        """Size of all messages in bytes."""
        ...

    @property
    def splits(self) -> Sequence[int]:
        """Size of each message in bytes."""
        ...

    @property
    def numbers(self) -> object:
        """The payloads of a single message as numbers that an engine can add, for float16."""
        ...


class Device(Protocol):
    """The memory of gradients and residuals, with encoders and decoders that make the core's bits."""

    def takes(self, spec: Spec, shape: tuple[int, ...]) -> bool:
        """Whether the device encodes tensors of this shape, and adds up their frames.

        Args:
            spec: without schedules.
        """
        ...

    def zeros(self, numel: int) -> FloatArray:
        """A new flat array."""
        ...

    def encode(self, tensors: Sequence[EncodeItem]) -> Encoded:
        """Start encoding; gradients may change, and residuals be read, when later calls come."""
        ...

    def decode_add(self, tensors: Sequence[DecodeItem], weight: float) -> None:
        """See `decode_batch_add`. Frames are checked before the call returns."""
        ...

    def add(self, codec: Codec, frame: ByteArray, out: FloatArray, weight: float) -> None:
        """See `Codec.decode_add`."""
        ...

    def give(self, tensors: Sequence[GiveItem]) -> None:
        """Write exact gradients to their outputs; each product and sum is rounded."""
        ...

    def differ(self, tensors: Sequence[DifferItem]) -> None:
        """Compute differences before they are encoded; see `DifferItem`."""
        ...

    def advance(self, tensors: Sequence[AdvanceItem]) -> None:
        """Add what was sent to estimates; see `AdvanceItem`. Each sum and difference is rounded."""
        ...

    def to_peers(self, codec: Codec) -> PeerDevice | None:
        """This device, if tensors of a codec travel from it to the devices of other ranks.

        None: through the hosts. All ranks give the same answer.
        """
        ...

    def copy(self, pairs: Sequence[tuple[FloatArray, FloatArray]]) -> None:
        """Copy the first array of each pair into the second one; both are flat."""
        ...

    def scale(self, arrays: Sequence[FloatArray], factor: float) -> None:
        """Multiply arrays in place by a factor, which is a float32."""
        ...

    def poison(self, grads: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """The gradients; each all NaN if one of its elements is not finite.

        A device may change the gradients themselves: their step is skipped.
        """
        ...

    def to_host(self, array: FloatArray) -> FloatArray:
        """The elements on the host: a copy, unless they are on the host already."""
        ...

    def from_host(self, array: FloatArray) -> FloatArray:
        """The elements on this device: a copy, unless they are on it already."""
        ...


class PeerDevice(Protocol):
    """A device of a job where all ranks have such devices, and an engine between them."""

    def zeros(self, numel: int) -> FloatArray:
        """See `Device.zeros`."""
        ...

    def begin_messages(
        self, name: str, groups: Sequence[Sequence[EncodeItem]], size: int = 0
    ) -> PeerMessages:
        """Start encoding groups of tensors for the devices of all ranks; see `encode`.

        The messages hold until the next call with this name.

        Args:
            name: of the messages; the tensors of a name are best the same in every step.
            size: least size in bytes; what is missing is filled up.

        Raises:
            ProtocolError: a rank's message of this name was damaged in the last step.
        """
        ...

    def add_messages(
        self,
        own_messages: PeerMessages,
        group: int,
        tensors: Sequence[PeerItem],
        messages: Sequence[ByteArray],
        weight: float,
        exact: int | None = None,
    ) -> None:
        """Sum up the messages of all ranks, in rank order; see `decode_batch_add`.

        The device checks them later: see `begin_messages`.

        Args:
            own_messages: this rank's messages, with the same codecs and sizes.
            group: index of the group in ``own_messages`` to which the messages belong.
            exact: a rank with its part in ``out`` already; its message does not count. None: former
                elements of ``out`` do not count.
        """
        ...

    def decode_messages(
        self,
        own_messages: PeerMessages,
        groups: Sequence[Sequence[PeerItem]],
        messages: Sequence[ByteArray],
    ) -> None:
        """Decode a message for each group of ``own_messages`` into ``out``; see `add_messages`."""
        ...

    def decode_numbers(
        self, own_messages: PeerMessages, tensors: Sequence[PeerItem], numbers: object
    ) -> None:
        """Decode the average of all ranks' ``numbers`` into ``out``."""
        ...

    def add_lost(self, residual: FloatArray, lost: FloatArray, times: float) -> None:
        """``residual += times * lost``, each rounded; then NaN and Inf become 0. ``lost`` is used up."""
        ...

    def begin_shares(
        self, name: str, tensors: Sequence[EncodeItem], shares: Shares, rank: int
    ) -> PeerMessages:
        """As `begin_messages`, with a message for the owner of each share: its elements that tensors keep.

        Of those other than 0, elements beyond the first `Shares.slots` are added to the residuals again, in this
        rank's own share to its average. If one of the elements of another share is then NaN or Inf, the last one
        that travels becomes NaN.

        Args:
            rank: this rank.
        """
        ...

    def add_shares(
        self, own_messages: PeerMessages, messages: Sequence[ByteArray]
    ) -> tuple[FloatArray, FloatArray]:
        """The average of all ranks' messages of this rank's share, added in rank order, and then of its own elements
        that had no slot; see `add_messages`.

        Returns:
            The average, and memory of as many elements for what is not sent of it. Both hold until the next
            `begin_shares` with this name.
        """
        ...

    def collect_shares(
        self,
        own_messages: PeerMessages,
        gathered: PeerMessages,
        codec: Codec,
        messages: Sequence[ByteArray],
        outputs: Sequence[FloatArray],
    ) -> None:
        """Decode the messages of all shares' owners into ``outputs``; see `add_messages`.

        Residuals get, in this rank's share, what was not sent of its average, times the number of ranks; see
        `add_lost`.

        Args:
            own_messages: of `begin_shares`.
            gathered: this rank's message for all ranks, with the average of its share as the only tensor.
            codec: of that tensor.
            outputs: for each tensor of the bucket.
        """
        ...


class DeviceArray(CodedArray):
    """Contiguous float32 elements in a device's memory, with these attributes of numpy's arrays.

    ``device``, ``shape``, ``size`` and ``nbytes``.
    """

    device: Device
    shape: tuple[int, ...]
    size: int
    nbytes: int

    @abstractmethod
    def reshape(self, shape: int | tuple[int, ...]) -> FloatArray:
        """A view of another shape; -1 for a flat one."""

    @abstractmethod
    def __getitem__(self, elements: slice) -> FloatArray:
        """A view of consecutive elements of a flat array."""

    def encode(self, codec: Codec, seed: int, step: int, tensor_id: int) -> ByteArray:
        """See `Codec.encode`; waits for the device.

        Raises:
            SpecError: the device has no kernels for the codec.
        """
        self._check(codec)
        array: Any = self
        frame, _ = self.device.encode([EncodeItem(codec, array, seed, step, tensor_id)])()
        return frame

    def decode_add(self, codec: Codec, frame: ByteArray, weight: float) -> None:
        """See `Codec.decode_add`; the frame is checked before the call returns.

        Raises:
            SpecError: the device has no kernels for the codec.
        """
        self._check(codec)
        array: Any = self
        self.device.add(codec, frame, array, weight)

    def _check(self, codec: Codec) -> None:
        if not self.device.takes(parse(codec.spec), self.shape):
            raise SpecError(
                f"the device has no kernels for '{codec.spec}' and a tensor of shape {self.shape}: "
                "copy the tensor to the host, for example with .cpu(); docs/gpu.md lists the specs"
            )


class _Host:
    """The host, which takes everything; encoding ends before `encode` returns."""

    def takes(self, spec: Spec, shape: tuple[int, ...]) -> bool:
        return True

    def zeros(self, numel: int) -> FloatArray:
        array = room(numel)
        _core.zero(array)
        return array

    @timed("encode")
    def encode(self, tensors: Sequence[EncodeItem]) -> Encoded:
        out, sizes = _core.encode_batch(tensors)
        return lambda: (out[: sum(sizes)], sizes)

    def decode_add(self, tensors: Sequence[DecodeItem], weight: float) -> None:
        _core.decode_batch_add(tensors, weight)

    def add(self, codec: Codec, frame: ByteArray, out: FloatArray, weight: float) -> None:
        codec.decode_add(frame, out, weight)

    def give(self, tensors: Sequence[GiveItem]) -> None:
        for grad, residual, beta, gamma, out in tensors:
            if residual is None:
                np.copyto(out, grad)
                continue
            _core.compensate(residual, grad, beta, gamma)
            np.copyto(out, residual)
            _core.zero(residual)

    def differ(self, tensors: Sequence[DifferItem]) -> None:
        for difference, grad, estimate in tensors:
            _core.subtract_estimate(difference, grad, estimate)

    def advance(self, tensors: Sequence[AdvanceItem]) -> None:
        for mean, average, out, estimate, difference, unsent in tensors:
            _core.add_average(mean, average, out)
            if estimate is not None:
                assert difference is not None
                assert unsent is not None
                _core.add_sent(estimate, difference, unsent, out)

    def to_peers(self, codec: Codec) -> PeerDevice | None:
        return None

    def copy(self, pairs: Sequence[tuple[FloatArray, FloatArray]]) -> None:
        for array, copy in pairs:
            np.copyto(copy, array)

    def scale(self, arrays: Sequence[FloatArray], factor: float) -> None:
        for array in arrays:
            array *= np.float32(factor)

    def poison(self, grads: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """The caller's gradients stay as they are."""
        return [
            grad
            if grad.size == 0 or (math.isfinite(grad.max()) and math.isfinite(grad.min()))
            else np.full_like(grad, np.nan)
            for grad in grads
        ]

    def to_host(self, array: FloatArray) -> FloatArray:
        return array

    def from_host(self, array: FloatArray) -> FloatArray:
        return array


HOST: Device = _Host()


def device_of(array: object) -> Device:
    """The device that holds an array; the host for all but `DeviceArray`."""
    kind: Any = type(array)
    return array.device if _has_device(kind) else HOST  # type: ignore[attr-defined]


@cache
def _has_device(kind: Any) -> bool:
    """Whether arrays of a type are on another device; abstract classes answer slowly."""
    return issubclass(kind, DeviceArray)


def peer_device_of(tensors: Sequence[EncodeItem]) -> PeerDevice | None:
    """The device from which all of the tensors travel to the other ranks' devices; None if they do not."""
    device = device_of(tensors[0].grad)
    if device is HOST:
        return None
    found, codec = None, None
    for tensor in tensors:
        if device_of(tensor.grad) is not device:
            return None
        if tensor.codec is not codec:
            codec = tensor.codec
            found = device.to_peers(codec)
            if found is None:
                return None
    return found
