"""Tensors of any framework as float32 numpy arrays, without a copy if possible."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from gradcomp import _core

__all__ = ["ByteArray", "CodedArray", "FloatArray", "as_bytes", "as_float32", "room", "split"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
ByteArray: TypeAlias = npt.NDArray[np.uint8]

_DLPACK_CPU = 1

_Scalar = TypeVar("_Scalar", bound=np.generic)


class CodedArray(ABC):
    """Float32 elements that codecs cannot read; see `gradcomp.codec.devices.DeviceArray`."""

    @abstractmethod
    def encode(self, codec: Any, seed: int, step: int, tensor_id: int) -> ByteArray:
        """See `Codec.encode`."""

    @abstractmethod
    def decode_add(self, codec: Any, frame: ByteArray, weight: float) -> None:
        """See `Codec.decode_add`; this array is ``out``."""


def room(numel: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """A flat array of any content.

    Large ones have the memory of earlier ones to which nothing refers any more: what the system gives,
    it clears first.
    """
    return _core.room(numel * np.dtype(dtype).itemsize).view(dtype)


def as_float32(x: Any) -> FloatArray:
    """``x`` as a C-contiguous float32 array of the same shape.

    Args:
        x: a numpy array, a CPU tensor with the DLPack protocol (such as torch's), or an object
            with the buffer protocol (such as an array.array). Its dtype is float16,
            bfloat16, float32 or float64. A contiguous float32 tensor is shared, not copied;
            float64 is rounded to the nearest float32.

    Raises:
        TypeError: for any other type or dtype, a tensor that is not in CPU memory, or one that
            requires grad.
    """
    array = x if isinstance(x, np.ndarray) else _import(x)
    if array.dtype == np.float32:
        return np.asarray(array, order="C")  # ascontiguousarray would give a scalar a dimension
    if array.dtype in (np.float16, np.float64):
        with np.errstate(over="ignore"):  # float64 beyond float32's range becomes Inf
            return np.asarray(array, dtype=np.float32, order="C")
    if array.dtype.name == "bfloat16":  # ml_dtypes
        return _widen_bfloat16(array.view(np.uint16))
    raise TypeError(
        f"a gradient of dtype {array.dtype} cannot be compressed; allowed are float16, bfloat16, "
        "float32 and float64"
    )


def as_bytes(data: Any) -> ByteArray:
    """``data`` (bytes, bytearray, memoryview or an array) as flat uint8.

    Only an array that is not contiguous is copied.

    Raises:
        TypeError: ``data`` is of another type, or a memoryview that is not contiguous.
    """
    try:
        if isinstance(data, np.ndarray):
            return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        return np.frombuffer(data, dtype=np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise TypeError(
            f"{type(data).__name__} does not hold contiguous bytes ({error}); allowed are bytes, "
            "bytearray, memoryview and numpy arrays"
        ) from error


def split(flat: npt.NDArray[_Scalar], sizes: Sequence[int]) -> list[npt.NDArray[_Scalar]]:
    """The parts of a flat array, as views: ``sizes`` elements each."""
    parts, begin = [], 0
    for size in sizes:
        parts.append(flat[begin : begin + size])
        begin += size
    return parts


def _widen_bfloat16(bits: npt.NDArray[np.uint16]) -> FloatArray:
    return _core.bfloat16_to_float32(np.ascontiguousarray(bits)).reshape(bits.shape)


def _import(x: Any) -> npt.NDArray[Any]:
    if hasattr(x, "__dlpack__"):
        return _from_dlpack(x)
    try:
        return np.asarray(memoryview(x))
    except TypeError:
        raise TypeError(
            f"{type(x).__name__} is not a type of tensor; allowed are numpy arrays, CPU tensors "
            "with the DLPack protocol, and buffers of floats"
        ) from None


def _from_dlpack(x: Any) -> npt.NDArray[Any]:
    try:
        device = x.__dlpack_device__()[0]
        if device != _DLPACK_CPU:
            raise TypeError(
                f"the tensor is not in CPU memory (DLPack device type {int(device)}); move it "
                "there first, for example with .cpu(), or give torch_compressors.device_array(tensor) "
                "to codecs that have kernels"
            )
        if str(x.dtype).endswith("bfloat16"):  # numpy has no such type
            return _widen_bfloat16(_core.bfloat16_bits(x.__dlpack__()))
        # DLPack has no negative bit: torch exports z.conj().imag with the signs of z.imag.
        return np.from_dlpack(x.resolve_neg() if hasattr(x, "resolve_neg") else x)
    except (BufferError, RuntimeError, ValueError) as error:
        raise TypeError(f"the tensor cannot be read: {error}") from error
