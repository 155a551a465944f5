"""Frames from their parts, and back: for devices that choose, round and add up elements themselves.

Headers, the coding of indices, checksums and the checks of foreign bytes stay in the core, which reads the
fields of the named tuples by their names (csrc/bindings/frame.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, FloatArray, as_bytes
from gradcomp.codec.codec import Codec

__all__ = [
    "FramePayload",
    "IndexArray",
    "KeptParts",
    "PayloadParts",
    "clip_of_normal",
    "frames_of_parts",
    "kept_count",
    "kept_of_frames",
    "payloads_of_frames",
    "rotation_of",
    "sample_of",
]

IndexArray = npt.NDArray[np.uint32]


class KeptParts(NamedTuple):
    """Elements of one tensor that travel, for ``sparse`` codecs other than ``blocktopk``.

    Attributes:
        indices: of the kept elements, or chunks of elements, in ascending order; empty for codecs
            that choose by the stream, as the indices do not travel.
        values: of all kept elements, before they are rounded to the codec's type of values.
        numel: number of the tensor's elements.
        stream: the key of the random numbers, from `derive_stream`; for codecs that are ``seeded``.
    """

    codec: Codec
    indices: IndexArray
    values: FloatArray
    numel: int
    stream: int = 0


class PayloadParts(NamedTuple):
    """The payload of one tensor, as the codec's encoder makes it.

    Attributes:
        numel, stream: as in `KeptParts`.
    """

    codec: Codec
    payload: ByteArray
    numel: int
    stream: int = 0


def frames_of_parts(parts: Sequence[KeptParts | PayloadParts]) -> tuple[ByteArray, list[int]]:
    """The frames of a bucket's tensors, one after the other, and their sizes, as `encode_batch`.

    All threads of the core work at once.

    Raises:
        SpecError: kept elements are given for a codec without such parts.
        WireError: kept elements that the codec could not have sent.
        CapacityError: a payload is larger than any of this codec and size.
    """
    out, sizes = _core.frames_of_parts(parts)
    return out[: sum(sizes)], sizes


def kept_count(params: Mapping[str, Any], numel: int) -> int:
    """Number of elements that a codec keeps, from its parameters ``ratio`` or ``k``."""
    return _core.kept_count(params.get("ratio", 0.0), params.get("k", 0), numel)


def clip_of_normal(bits: int, stochastic: bool) -> float:
    """Outermost level of `uniform` after a rotation, in root mean squares of the group."""
    return _core.clip_of_normal(bits, stochastic)


def rotation_of(numel: int) -> tuple[int, float]:
    """Of a rotation: the binary logarithm of a block's elements, and the factor of each of them."""
    return _core.rotation_of(numel)


def sample_of(sample_ratio: float, kept: int, numel: int) -> tuple[int, int]:
    """Of `sampled_topk`: the stride of its sample, and the threshold's rank among it, from the largest.

    A stride of 1 is the whole tensor: the choice is exact.

    Args:
        kept: number of elements that the codec keeps, from `kept_count`.
    """
    return _core.sample_of(sample_ratio, kept, numel)


def kept_of_frames(
    frames: Sequence[tuple[Codec, Any, int]],
) -> list[tuple[IndexArray, FloatArray]]:
    """For each codec, frame and number of elements: the ascending indices of the frame's kept elements or
    chunks, and the elements' decoded values. All threads of the core work at once.

    Raises:
        WireError: as in `Codec.decode`.
        SpecError: a codec has no such parts.
    """
    return _core.kept_of_frames(
        [(codec.core, as_bytes(frame), numel) for codec, frame, numel in frames]
    )


class FramePayload(NamedTuple):
    """The payload in a frame.

    Attributes:
        data: a view of the frame.
        stream: the key of the random numbers that decoding takes; 0 for codecs that are not ``seeded``.
    """

    data: ByteArray
    stream: int


def payloads_of_frames(frames: Sequence[tuple[Codec, Any, int]]) -> list[FramePayload]:
    """For each codec, frame and number of elements: the frame's payload. All threads of the core work at
    once.

    Raises:
        WireError: as in `Codec.decode`: every byte is checked.
        SpecError: only a codec's own decoder can check its payloads.
    """
    given = [(codec.core, as_bytes(frame), numel) for codec, frame, numel in frames]
    places = _core.payload_places(given)
    return [
        FramePayload(data[begin:end], stream)
        for (_, data, _), (begin, end, stream) in zip(given, places, strict=True)
    ]
