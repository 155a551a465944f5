"""Shared by low-rank algorithms: tensors as matrices, and their factors."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from gradcomp.codec.arrays import FloatArray, split
from gradcomp.codec.codec import Codec, get_codec
from gradcomp.exchange.rounds import AllGather, AllReduce, Request

__all__ = [
    "average_in_place",
    "average_of_factors",
    "averages_of",
    "buffer",
    "dense_to_factors",
    "is_safe",
    "matrix_shape",
    "values_codec",
]

_SAFE = 2.0**60


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """A tensor of at least one dimension as [shape[0], rest]."""
    return shape[0], math.prod(shape[1:])


def values_codec(values: str) -> Codec:
    """The codec of a factor's elements: ``"fp32"``, ``"fp16"`` or ``"bf16"``."""
    return get_codec("identity" if values == "fp32" else values)


def dense_to_factors(shape: tuple[int, ...], rank: int, codec: Codec) -> float:
    """Bytes of a float32 matrix over the bytes of two encoded factors of ``rank`` vectors."""
    rows, cols = matrix_shape(shape)
    item = 4 if codec.name == "identity" else 2
    return 4 * rows * cols / (item * min(rank, rows, cols) * (rows + cols))


def buffer(sizes: Sequence[int]) -> tuple[FloatArray, list[FloatArray]]:
    """An uninitialized array of sum(sizes) elements, and views of its parts."""
    flat = np.empty(sum(sizes), np.float32)
    return flat, split(flat, sizes)


def is_safe(factor: FloatArray) -> bool:
    """Whether products of a factor with orthonormal vectors cannot overflow; False for NaN, too.

    If it is False, the residual of the matrix is reset to 0. Otherwise it would stay far above all
    later gradients, and a few vectors per step would take many steps to send it.
    """
    return bool(max(factor.max(), -factor.min()) < _SAFE)


def average_of_factors(
    name: str, flat: FloatArray, codec: Codec
) -> Generator[Request, Any, tuple[FloatArray, FloatArray]]:
    """This rank's elements, encoded and decoded, and their average over the ranks."""
    if "summable" in codec.caps:
        payload = codec.encode_payload(flat)
        decoded = flat if codec.name == "identity" else codec.decode_payload(payload, flat.size)
        mean = yield AllReduce(name, payload)
        return decoded, codec.decode_payload(mean, flat.size)
    frame = codec.encode(flat)
    frames = yield AllGather(name, frame)
    mean = np.zeros(flat.size, np.float32)
    for of_rank in frames:
        codec.decode_add(of_rank, mean, 1.0 / len(frames))
    return codec.decode(frame), mean


def averages_of(
    name: str, arrays: Sequence[FloatArray], codec: Codec
) -> Generator[Request, Any, list[FloatArray]]:
    """The averages of arrays over the ranks, encoded together; no request if there is none."""
    if not arrays:
        return []
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    _, mean = yield from average_of_factors(name, flat, codec)
    parts = split(mean, [array.size for array in arrays])
    return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]


def average_in_place(name: str, arrays: Sequence[FloatArray]) -> Generator[Request, Any, None]:
    """Replace arrays, at least one, by their averages over the ranks, in one request."""
    flat = [array.reshape(-1) for array in arrays]
    mean = yield AllReduce(name, flat[0] if len(flat) == 1 else np.concatenate(flat))
    for array, part in zip(flat, split(mean, [array.size for array in flat]), strict=True):
        array[:] = part
