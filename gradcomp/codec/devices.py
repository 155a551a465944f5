"""Devices: where tensors live, and where they are encoded and decoded.

Arrays on the host are numpy's, those of other devices `DeviceArray`. Only code that asks for an array's
device can be given one of another device, so annotations say `FloatArray` for both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, CodedArray, FloatArray
from gradcomp.codec.codec import Codec
from gradcomp.codec.items import ToAddShared, ToDecode, ToEncode
from gradcomp.codec.products import ToApply, ToMultiply
from gradcomp.codec.spec import Spec, parse
from gradcomp.errors import SpecError
from gradcomp.stopwatch import timed

__all__ = ["HOST", "Device", "DeviceArray", "Encoded", "device_of"]

Encoded: TypeAlias = Callable[[], tuple[ByteArray, list[int]]]
"""Waits for frames that a device encodes; returns the result of `encode_batch`."""


class Device(Protocol):
    """The memory of gradients and residuals, with encoders and decoders that make the core's bits."""

    def takes(self, spec: Spec, shape: tuple[int, ...]) -> bool:
        """Whether the device encodes tensors of this shape, and adds up their frames."""
        ...

    def zeros(self, numel: int) -> FloatArray:
        """A new flat array."""
        ...

    def encode(self, tensors: Sequence[ToEncode]) -> Encoded:
        """Start encoding; gradients may change, and residuals be read, when later calls come."""
        ...

    def decode_add(self, tensors: Sequence[ToDecode], weight: float) -> None:
        """See `decode_batch_add`. Frames are checked before the call returns."""
        ...

    def add(self, codec: Codec, frame: ByteArray, out: FloatArray, weight: float) -> None:
        """See `Codec.decode_add`."""
        ...

    def shares(self, tensors: Sequence[ToEncode]) -> bool:
        """Whether these tensors travel from device to device: all ranks give the same answer."""
        ...

    def share(self, name: str, tensors: Sequence[ToEncode]) -> ByteArray:
        """Start encoding a bucket for the devices of all ranks; see `encode`.

        Args:
            name: of the bucket, for messages.

        Returns:
            A message in the device's memory, for an engine that reads it there. Its size is the same on all
            ranks.

        Raises:
            ProtocolError: a rank's message of the bucket's last step was none of these tensors'.
        """
        ...

    def add_shared(
        self,
        own: ByteArray,
        tensors: Sequence[ToAddShared],
        messages: Sequence[ByteArray],
        weight: float,
    ) -> None:
        """Add the messages of all ranks, in rank order; see `decode_batch_add`.

        The device checks them later: see `share`.

        Args:
            own: this rank's message, as `share` has returned it.
        """
        ...

    def multiply(self, matrices: Sequence[ToMultiply]) -> Callable[[], None]:
        """Start products; the returned function waits until they are in ``out``.

        They are a rank's own, so their last bits may depend on the device.
        """
        ...

    def apply(self, matrices: Sequence[ToApply]) -> None:
        """Update averages and matrices; see `ToApply`."""
        ...

    def to_host(self, array: FloatArray) -> FloatArray:
        """The elements on the host: a copy, unless they are there already."""
        ...

    def from_host(self, array: FloatArray) -> FloatArray:
        """The elements on this device: a copy, unless they are there already."""
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

    def encode(self, codec: Codec, seed: int, step: int, tensor_id: int) -> ByteArray:
        """See `Codec.encode`; waits for the device.

        Raises:
            SpecError: the device has no kernels for the codec.
        """
        self._check(codec)
        array: Any = self
        frame, _ = self.device.encode([ToEncode(codec, array, seed, step, tensor_id)])()
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
        return np.zeros(numel, np.float32)

    @timed("encode")
    def encode(self, tensors: Sequence[ToEncode]) -> Encoded:
        out, sizes = _core.encode_batch(tensors)
        return lambda: (out[: sum(sizes)], sizes)

    def decode_add(self, tensors: Sequence[ToDecode], weight: float) -> None:
        _core.decode_batch_add(tensors, weight)

    def add(self, codec: Codec, frame: ByteArray, out: FloatArray, weight: float) -> None:
        codec.decode_add(frame, out, weight)

    def shares(self, tensors: Sequence[ToEncode]) -> bool:
        return False

    def share(self, name: str, tensors: Sequence[ToEncode]) -> ByteArray:
        raise NotImplementedError

    def add_shared(
        self,
        own: ByteArray,
        tensors: Sequence[ToAddShared],
        messages: Sequence[ByteArray],
        weight: float,
    ) -> None:
        raise NotImplementedError

    @timed("encode")
    def multiply(self, matrices: Sequence[ToMultiply]) -> Callable[[], None]:
        for m, grad, beta, factor, transposed, out in matrices:
            product = _core.multiply_transposed if transposed else _core.multiply
            product(m, grad, factor, out, beta=beta)
        return lambda: None

    @timed("decode")
    def apply(self, matrices: Sequence[ToApply]) -> None:
        for m, average, begun, p, q, own_p, own_q, safe in matrices:
            output = {"added" if begun else "assigned": average}
            if own_p is p and own_q is q:
                _core.outer(p, q, **output, subtracted=m)
            else:
                _core.outer(p, q, **output)
                _core.outer(own_p, own_q, subtracted=m)
            if not safe:
                _core.zero(m.reshape(-1))

    def to_host(self, array: FloatArray) -> FloatArray:
        return array

    def from_host(self, array: FloatArray) -> FloatArray:
        return array


HOST: Device = _Host()


def device_of(array: object) -> Device:
    """The device in whose memory an array is; the host for all but `DeviceArray`."""
    return array.device if isinstance(array, DeviceArray) else HOST
