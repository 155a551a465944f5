"""The independent decoder itself, and its agreement with the core on random and damaged frames."""

from __future__ import annotations

import random
import struct

import decoder
import numpy as np
import pytest

import gradcomp
from golden import make_golden
from golden.worked_examples import EXAMPLE_INPUT
from gradcomp import _core
from gradcomp.codec.spec import stages
from support import frames
from support.frames import sealed
from support.scope import by_scope

SPECS = [
    *(
        gradcomp.get_codec(spec).spec
        for stage in stages()
        if stage.kind == "codec"
        for spec in make_golden.SPECS.get(stage.name, (stage.example,))
    ),
    "topk(ratio=1.0,values=fp32)",
    "randomk(ratio=1.0,unbiased=false,values=fp32)",
]


def test_crc32c_check_value() -> None:
    assert decoder.crc32c(b"123456789") == 0xE3069283
    assert decoder.crc32c(b"") == 0


def test_philox_known_answers() -> None:
    # The known answers that come with Random123, the authors' own implementation.
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    answers = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (pi, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]
    for counter, key, block in answers:
        assert tuple(decoder.philox4x32(np.array([counter]), key)[0]) == block


def test_streams_agree_with_the_core() -> None:
    rng = random.Random(0)
    for _ in range(1000):
        seed, step, tensor_id = (rng.getrandbits(rng.choice([1, 8, 32, 64])) for _ in range(3))
        expected = _core.derive_stream(seed, step, tensor_id)
        assert decoder.stream_key(seed, step, tensor_id) == expected


def test_the_independent_decoder_knows_every_registered_codec() -> None:
    assert list(decoder.PAYLOADS) == gradcomp.list_codecs()


@pytest.mark.parametrize("spec", SPECS)
def test_both_decoders_agree_on_random_frames(spec: str) -> None:
    codec = gradcomp.get_codec(spec)
    assert codec.spec == spec
    rng = np.random.default_rng(1)
    for step in range(by_scope(150, 500)):
        n = int(rng.integers(0, 200))
        bits = rng.integers(0, 2**32, n, dtype=np.uint32)
        x = bits.view(np.float32) if step % 2 else rng.normal(size=n).astype(np.float32)
        seed, tensor_id = (int(number) for number in rng.integers(0, 2**64, 2, dtype=np.uint64))
        frame = codec.encode(x, seed=seed, step=step, tensor_id=tensor_id).tobytes()
        assert codec.decode(frame).tobytes() == decoder.decode(frame, spec).tobytes()


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "|" in spec])
def test_both_decoders_agree_on_several_chunks_and_blocks(spec: str) -> None:
    x = np.random.default_rng(2).laplace(size=70_001).astype(np.float32)
    frame = gradcomp.get_codec(spec).encode(x, seed=3).tobytes()
    decoded = gradcomp.get_codec(spec).decode(frame)
    assert decoded.tobytes() == decoder.decode(frame, spec).tobytes()


def read_by_core(frame: bytes, spec: str, numel: int) -> bytes | None:
    try:
        return gradcomp.get_codec(spec).decode(frame, numel=numel).tobytes()
    except gradcomp.WireError:
        return None


def read_by_document(frame: bytes, spec: str, numel: int) -> bytes | None:
    try:
        if decoder.Frame.read(frame).numel != numel:
            return None
        return decoder.decode(frame, spec).tobytes()
    except decoder.FormatError:
        return None


def damaged(frame: bytes, rng: random.Random) -> bytes:
    """The frame with one to three edits; most get a new CRC, so that the payload is looked at."""
    data = bytearray(frame)
    for _ in range(rng.choice([1, 1, 2, 3])):
        kind = rng.randrange(6)
        at = rng.randrange(len(data)) if data else 0
        if kind == 0:
            data[at:] = b""
        elif kind == 1:
            data += rng.randbytes(rng.randrange(1, 9))
        elif kind == 2 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 3 and len(data) >= 28:
            # A u32 of the payload becomes another, or a number that means something.
            word = rng.randrange(6, len(data) // 4)
            number = rng.choice([0, 1, 2, 7, 2**31, 2**32 - 1, rng.getrandbits(32)])
            struct.pack_into("<I", data, 4 * word, number)
        elif kind == 4 and len(data) >= 28:
            struct.pack_into("<I", data, 12, max(0, len(data) - rng.choice([24, 28, 32, 36])))
        elif kind == 5 and len(data) > 5:
            data[5] = rng.choice([0, 1, 2, 3, 4])
    return sealed(bytes(data[:-4])) if len(data) >= 28 and rng.random() < 0.8 else bytes(data)


@pytest.mark.parametrize("spec", SPECS)
def test_both_decoders_refuse_the_same_damaged_frames(spec: str) -> None:
    codec = gradcomp.get_codec(spec)
    rng = random.Random(spec)
    outcomes = {True: 0, False: 0}
    edits = by_scope(500, 2000)
    for step in range(edits):
        n = rng.randrange(0, 24)
        x = np.frombuffer(rng.randbytes(4 * n), np.float32)
        frame = damaged(codec.encode(x, step=step).tobytes(), rng)
        expected = read_by_document(frame, spec, n)
        assert read_by_core(frame, spec, n) == expected, frame.hex(" ")
        outcomes[expected is None] += 1
    assert min(outcomes.values()) > edits // 20, (
        "the edits must leave some frames valid and break others"
    )


# Each rule of the document, broken on its own ---------------------------------------------------

TOPK = "topk(k=2,values=fp32)"
RANDOMK = "randomk(k=2,unbiased=false,values=fp32)"
RAW = "topk(k=2,values=fp32)|raw32"
FRAME = gradcomp.get_codec(RAW).encode(EXAMPLE_INPUT).tobytes()
SEEDED = gradcomp.get_codec(RANDOMK).encode(EXAMPLE_INPUT).tobytes()


def edited(frame: bytes, offset: int, layout: str, value: int) -> bytes:
    """The frame with a number packed into it, and a CRC that fits."""
    return sealed(frames.edited(frame, offset, layout, value)[:-4])


BROKEN = {
    "empty": (b"", RAW),
    "header cut short": (FRAME[:23], RAW),
    "a byte is missing": (FRAME[:-1], RAW),
    "a byte too many": (FRAME + b"\0", RAW),
    "magic": (edited(FRAME, 3, "B", ord("p")), RAW),
    "version 0": (edited(FRAME, 4, "B", 0), RAW),
    "version 2": (edited(FRAME, 4, "B", 2), RAW),
    "unknown flag": (edited(FRAME, 5, "B", 0x81), RAW),
    "stream flag without need": (edited(FRAME, 5, "B", 3), RAW),
    "stream flag missing": (edited(SEEDED, 5, "B", 1), RANDOMK),
    "codec id 0": (edited(FRAME, 6, "<H", 0), RAW),
    "another codec": (edited(FRAME, 6, "<H", 5), RAW),
    "an id for users": (edited(FRAME, 6, "<H", 0x8004), RAW),
    "another spec": (FRAME, TOPK),
    "payload length": (edited(FRAME, 12, "<I", 23), RAW),
    "payload length of 4 GiB": (edited(FRAME, 12, "<I", 2**32 - 1), RAW),
    "numel 2^30": (edited(FRAME, 16, "<Q", 2**30), RAW),
    "numel 2^64 - 1": (edited(FRAME, 16, "<Q", 2**64 - 1), RAW),
    "numel 1, so k is 1": (edited(FRAME, 16, "<Q", 1), RAW),
    "CRC": (FRAME[:-1] + bytes([FRAME[-1] ^ 1]), RAW),
    "count": (edited(FRAME, 24, "<I", 1), RAW),
    "index coding": (edited(FRAME, 28, "B", 1), RAW),
    "value type": (edited(FRAME, 29, "B", 1), RAW),
    "reserved bytes": (edited(FRAME, 30, "<H", 0x0100), RAW),
    "index is numel": (edited(FRAME, 36, "<I", 4), RAW),
    "indices equal": (edited(FRAME, 36, "<I", 1), RAW),
    "indices descend": (edited(FRAME, 32, "<I", 3), RAW),
}


@pytest.mark.parametrize("name", BROKEN)
def test_both_decoders_refuse_what_the_document_forbids(name: str) -> None:
    frame, spec = BROKEN[name]
    with pytest.raises(decoder.FormatError):
        decoder.decode(frame, spec)
    codec = gradcomp.get_codec(spec)
    with pytest.raises(gradcomp.WireError):
        codec.decode(frame)
    acc = np.arange(4, dtype=np.float32)
    with pytest.raises(gradcomp.WireError):
        codec.decode_add(frame, acc)
    assert acc.tolist() == [0, 1, 2, 3]


def test_both_decoders_read_a_frame_without_a_crc() -> None:
    bare = bytearray(FRAME[:-4])
    bare[5] &= ~1
    expected = [0.0, -3.0, 0.0, 2.0]
    assert decoder.decode(bytes(bare), RAW).tolist() == expected
    assert gradcomp.get_codec(RAW).decode(bytes(bare)).tolist() == expected


def test_half_precision_decodes_as_numpy_does() -> None:
    halves = np.arange(2**16, dtype=np.uint16)
    payload = halves.astype("<u2").tobytes()
    decoded = decoder.read_fp16(payload, halves.size, decoder.Spec("fp16", {}), 0)
    expected = halves.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(decoded, expected)
    nan = np.isnan(expected)
    assert (np.signbit(decoded) == np.signbit(expected)).all()
    assert (decoded[nan].view(np.uint32) & 0x00400000).all(), "every NaN is quiet"


@pytest.mark.parametrize(
    ("spec", "n", "k"),
    [
        ("randomk(k=5)", 3, 3),
        ("randomk(k=5)", 0, 0),
        ("randomk(ratio=0.01)", 1, 1),
        ("randomk(ratio=0.07)", 100, 7),
        ("randomk(ratio=0.5)", 5, 3),
        ("randomk(ratio=1e-05)", 10, 1),
        ("randomk(ratio=1.0)", 10, 10),
    ],
)
def test_kept_count(spec: str, n: int, k: int) -> None:
    assert decoder.Spec.read(spec).kept(n) == k
    assert gradcomp.get_codec(spec).max_payload_size(n) == 4 * k


def test_the_decoder_knows_its_codecs() -> None:
    with pytest.raises(ValueError, match="no codec 'gzip'; known: identity, "):
        decoder.decode(FRAME, "gzip(level=1)")
