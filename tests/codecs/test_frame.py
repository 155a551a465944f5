"""Looking into frames, and cutting concatenations of them apart."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from gradcomp import WireError, _core, get_codec
from gradcomp.codec.frame import FrameInfo, inspect, split_frames
from support.frames import edited

X = np.array([0.5, -3.0, 0.25, 2.0], np.float32)
TOPK = get_codec("topk(k=2)|raw32").encode(X).tobytes()
RANDOMK = get_codec("randomk(k=2)").encode(X, seed=1, step=2, tensor_id=3).tobytes()


def test_inspect_names_every_field() -> None:
    assert inspect(TOPK) == FrameInfo(
        version=1,
        flags=1,
        codec_id=4,
        codec_name="topk",
        spec_hash=_core.Codec("topk(k=2)|raw32").spec_hash,
        numel=4,
        payload_bytes=24,
        stream=None,
        crc_ok=True,
        total_bytes=52,
    )
    info = inspect(RANDOMK)
    assert (info.flags, info.codec_name, info.payload_bytes) == (3, "randomk", 8)
    assert info.stream == _core.derive_stream(1, 2, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.numel = 5


@pytest.mark.parametrize("frame", [bytearray(TOPK), memoryview(TOPK), np.frombuffer(TOPK, "u1")])
def test_inspect_takes_every_holder_of_bytes(frame: object) -> None:
    assert inspect(frame) == inspect(TOPK)


def test_a_wrong_crc_is_told_not_raised() -> None:
    assert inspect(edited(TOPK, 40, "<f", 9.0)).crc_ok is False
    without = edited(TOPK[:-4], 5, "B", 0)
    assert inspect(without).crc_ok is None
    assert inspect(without).total_bytes == 48


def test_frames_of_unknown_codecs_are_shown() -> None:
    for codec_id in (99, 0x8001, 0xFFFF):
        info = inspect(edited(TOPK, 6, "<H", codec_id))
        assert (info.codec_id, info.codec_name) == (codec_id, None)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "truncated frame: 0 bytes, and the header alone has 24"),
        (TOPK[:23], "truncated frame: 23 bytes, and the header alone has 24"),
        (b"PMCG" + TOPK[4:], "not a gradcomp frame: it does not begin with 'GCMP'"),
        (edited(TOPK, 4, "B", 2), "frame version 2; this gradcomp reads version 1"),
        (edited(TOPK, 5, "B", 5), "unknown frame flags 0x00000005"),
        (edited(TOPK, 16, "<Q", 2**30), "claims 1073741824 elements; at most 1073741823"),
        (edited(TOPK, 16, "<Q", 2**64 - 1), "claims 18446744073709551615 elements"),
        (TOPK[:-1], "the frame has 51 bytes; its header promises 52"),
        (TOPK + b"\0", "the frame has 53 bytes; its header promises 52"),
        (edited(TOPK, 12, "<I", 2**32 - 1), "its header promises 4294967323"),
        (edited(TOPK, 5, "B", 3), "the frame has 52 bytes; its header promises 60"),
    ],
)
def test_what_is_no_whole_frame_is_refused(frame: bytes, says: str) -> None:
    with pytest.raises(WireError, match=re.escape(says)):
        inspect(frame)


def test_split_frames() -> None:
    parts = split_frames(TOPK + RANDOMK + TOPK, 3)
    assert [part.tobytes() for part in parts] == [TOPK, RANDOMK, TOPK]
    assert split_frames(b"", 0) == []
    assert [part.tobytes() for part in split_frames(bytearray(TOPK), 1)] == [TOPK]


def test_split_frames_copies_nothing() -> None:
    data = np.frombuffer(TOPK + RANDOMK, np.uint8)
    assert all(np.shares_memory(part, data) for part in split_frames(data, 2))


@pytest.mark.parametrize(
    ("data", "count", "says"),
    [
        (TOPK + RANDOMK, 1, f"{len(RANDOMK)} bytes follow the last of 1 frames"),
        (TOPK, 0, "52 bytes follow the last of 0 frames"),
        (TOPK + RANDOMK, 3, "truncated frame: 0 bytes"),
        (TOPK + RANDOMK[:-1], 2, f"frame 1 of 2 claims {len(RANDOMK)} bytes, and 43 are left"),
        (TOPK + RANDOMK[:20], 2, "truncated frame: 20 bytes"),
        (edited(TOPK, 12, "<I", 2**32 - 1), 1, "frame 0 of 1 claims 4294967323 bytes, and 52 are"),
        (edited(TOPK, 12, "<I", 23) + RANDOMK, 2, "not a gradcomp frame"),
    ],
)
def test_split_frames_refuses_what_does_not_fit(data: bytes, count: int, says: str) -> None:
    with pytest.raises(WireError, match=re.escape(says)):
        split_frames(data, count)


@pytest.mark.parametrize("call", [inspect, lambda data: split_frames(data, 1)])
def test_what_holds_no_bytes_is_a_type_error(call: object) -> None:
    with pytest.raises(TypeError, match="str does not hold contiguous bytes"):
        call("GCMP")
