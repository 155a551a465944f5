"""Frames that are changed on purpose."""

from __future__ import annotations

import struct

from decoder import crc32c

HEAD = 24
"""Bytes of a frame before the payload, of codecs without a stream."""


def edited(frame: bytes, offset: int, layout: str, value: float) -> bytes:
    """The frame with a number packed into it; its CRC stays."""
    data = bytearray(frame)
    struct.pack_into(layout, data, offset, value)
    return bytes(data)


def sealed(body: bytes) -> bytes:
    """The bytes of a frame, followed by their CRC."""
    return body + struct.pack("<I", crc32c(body))
