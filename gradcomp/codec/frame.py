"""Headers of frames, read without decoding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, as_bytes
from gradcomp.codec.plugins import discover
from gradcomp.errors import WireError

__all__ = ["FrameInfo", "frame_size", "inspect", "split_frames"]


@dataclass(frozen=True)
class FrameInfo:
    """The header of a frame; docs/wire-format.md explains the fields.

    ``codec_name`` is None for an unknown codec, ``stream`` for a codec without randomness, and
    ``crc_ok`` for a frame without a CRC.
    """

    version: int
    flags: int
    codec_id: int
    codec_name: str | None
    spec_hash: int
    numel: int
    payload_bytes: int
    stream: int | None
    crc_ok: bool | None
    total_bytes: int


def inspect(frame: Any) -> FrameInfo:
    """The checked header of a frame of any codec.

    Raises:
        WireError: the bytes are not a frame, or an incomplete one. A wrong CRC is not an error:
            ``crc_ok`` is then False.
    """
    discover()
    return FrameInfo(**_core.parse_frame(as_bytes(frame)))


def frame_size(data: Any) -> int:
    """Bytes of the frame that ``data`` begins with; only its header has to be present.

    Raises:
        WireError: ``data`` does not begin with the header of a frame.
    """
    size: int = _core.frame_size(as_bytes(data))
    return size


def split_frames(data: Any, count: int, each: int | Sequence[int] = 1) -> list[ByteArray]:
    """Cut concatenated frames apart, as an all-gather delivers them; the parts are views.

    Args:
        data: bytes, or a contiguous uint8 array.
        count: number of parts.
        each: number of frames in every part; or a list, with the number for each part.

    Raises:
        WireError: a header is damaged, or the frames do not fill ``data`` exactly.
    """
    buffer = as_bytes(data)
    counts = [each] * count if isinstance(each, int) else each
    frames = sum(counts)
    ends = [0]
    begin = 0
    for position in range(frames):
        end = begin + _core.frame_size(buffer[begin:])
        if end > buffer.size:
            raise WireError(
                f"frame {position} of {frames} claims {end - begin} bytes, and "
                f"{buffer.size - begin} are left"
            )
        ends.append(end)
        begin = end
    if begin != buffer.size:
        raise WireError(f"{buffer.size - begin} bytes follow the last of {frames} frames")
    borders = [ends[last] for last in itertools.accumulate(counts, initial=0)]
    return [buffer[begin:end] for begin, end in itertools.pairwise(borders)]
