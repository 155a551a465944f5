"""Frames from parts and back: the bytes of the encoder, and every check of the decoder."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from gradcomp import CapacityError, Codec, EncodeItem, SpecError, WireError, encode_batch, get_codec
from gradcomp.codec.codec import derive_stream
from gradcomp.codec.frame import split_frames
from gradcomp.codec.frame_parts import (
    KeptParts,
    PayloadParts,
    frames_of_parts,
    kept_count,
    kept_of_frames,
    payloads_of_frames,
)
from gradcomp.codec.spec import parse, stages
from support.codecs import settings_of_the_core
from support.frames import edited

SIZES = [1, 700, 4096, 70_001]
EXAMPLES = [stage.example for stage in stages() if stage.kind == "codec"]
VALUES = ("fp32", "fp16", "bf16", "int8", "sign", "means", "2bit")
CODERS = ("auto", "raw32", "bitmask", "elias_fano", "rice")
KEPT = [
    *(f"topk(ratio=0.02,values={values})" for values in VALUES),
    *(f"topk(ratio=0.3)|{coder}" for coder in CODERS),
    "threshold(tau=1.5)",
    "chunktopk(ratio=0.1,chunk=64)",
    *(f"randomk(ratio=0.02,values={values})" for values in VALUES),
    "randomblock(ratio=0.1)",
]


def gradient(numel: int) -> np.ndarray:
    return np.random.default_rng(numel).standard_normal(numel, np.float32)


def chosen(codec: Codec, x: np.ndarray, frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices of a frame, and the numbers of all elements that it carries."""
    [(indices, values)] = kept_of_frames([(codec, frame, x.size)])
    chunk = int(re.search(r"chunk=(\d+)", codec.spec)[1]) if "chunktopk" in codec.spec else 1
    elements = np.arange(x.size).reshape(-1)
    carried = np.concatenate(
        [elements[i * chunk : (i + 1) * chunk] for i in indices.tolist()] or [[]]
    )
    assert carried.size == values.size
    return indices, carried.astype(np.intp)


@pytest.mark.parametrize("spec", KEPT)
def test_kept_elements_make_the_frames_of_the_encoder(spec: str) -> None:
    codec = get_codec(spec)
    tensors = [EncodeItem(codec, gradient(numel), 1, 2, numel) for numel in SIZES]
    expected, sizes = encode_batch(tensors)
    parts = []
    for tensor, frame in zip(tensors, split_frames(expected, len(tensors)), strict=True):
        indices, carried = chosen(codec, tensor.grad, frame)
        if "seeded" in codec.caps:
            indices = indices[:0]
        stream = derive_stream(1, 2, tensor.tensor_id)
        parts.append(KeptParts(codec, indices, tensor.grad[carried], tensor.grad.size, stream))
    data, written = frames_of_parts(parts)
    assert written == sizes
    assert data.tobytes() == expected.tobytes()


@pytest.mark.parametrize("spec", KEPT)
def test_kept_elements_of_a_frame_are_its_decode(spec: str) -> None:
    codec = get_codec(spec)
    x = gradient(9_999)
    frame = codec.encode(x, seed=5)
    [(_, values)] = kept_of_frames([(codec, frame, x.size)])
    _, carried = chosen(codec, x, frame)
    scattered = np.zeros_like(x)
    scattered[carried] = values
    assert scattered.tobytes() == codec.decode(frame).tobytes()


@pytest.mark.parametrize("spec", EXAMPLES)
def test_a_payload_makes_the_frame_of_the_encoder(spec: str) -> None:
    codec = get_codec(spec)
    x = gradient(3_000)
    payload = codec.encode_payload(x, seed=3, step=4, tensor_id=5).view(np.uint8)
    stream = derive_stream(3, 4, 5)
    data, sizes = frames_of_parts([PayloadParts(codec, payload, x.size, stream)])
    expected = codec.encode(x, seed=3, step=4, tensor_id=5)
    assert sizes == [expected.size]
    assert data.tobytes() == expected.tobytes()


TOPK = get_codec("topk(k=3)|raw32")


@pytest.mark.parametrize(
    ("indices", "count", "says"),
    [
        ([4, 4, 7], 3, "index 4 at place 1"),
        ([4, 3, 7], 3, "index 3 at place 1"),
        ([4, 5, 8], 3, "index 8 at place 2; indices must ascend and be below 8"),
        ([4, 5], 2, "2 indices of 8; this spec keeps 3 to 3"),
        ([4, 5, 6, 7], 4, "4 indices of 8"),
        ([4, 5, 6], 2, "2 values for 3 kept elements"),
    ],
)
def test_elements_that_the_codec_cannot_send_are_refused(
    indices: list[int], count: int, says: str
) -> None:
    part = KeptParts(TOPK, np.array(indices, np.uint32), np.ones(count, np.float32), 8)
    with pytest.raises(WireError, match=re.escape(says)):
        frames_of_parts([part])


def test_a_seeded_codec_is_given_values_alone() -> None:
    codec = get_codec("randomk(k=3)")
    part = KeptParts(codec, np.arange(3, dtype=np.uint32), np.ones(3, np.float32), 8)
    with pytest.raises(WireError, match="3 indices and 3 values; this spec sends 0 and 3"):
        frames_of_parts([part])


@pytest.mark.parametrize("spec", ["fp16", "qsgd", "blocktopk(k=4)"])
def test_other_codecs_have_no_such_parts(spec: str) -> None:
    codec = get_codec(spec)
    part = KeptParts(codec, np.arange(3, dtype=np.uint32), np.ones(3, np.float32), 8)
    with pytest.raises(SpecError, match="has no parts"):
        frames_of_parts([part])
    with pytest.raises(SpecError, match="has no parts"):
        kept_of_frames([(codec, codec.encode(np.ones(8, np.float32)), 8)])


def test_a_payload_that_is_too_large_is_refused() -> None:
    part = PayloadParts(get_codec("fp16"), np.zeros(17, np.uint8), 8)
    with pytest.raises(CapacityError, match=r"has 17 bytes; 'fp16.*' makes at most 16"):
        frames_of_parts([part])


def test_damaged_and_foreign_frames_are_refused() -> None:
    frame = TOPK.encode(gradient(8)).tobytes()
    for position in range(len(frame)):
        with pytest.raises(WireError):
            kept_of_frames([(TOPK, edited(frame, position, "B", frame[position] ^ 1), 8)])
        with pytest.raises(WireError):
            kept_of_frames([(TOPK, frame[:position], 8)])
    with pytest.raises(WireError, match="the frame holds 8 elements, not 9"):
        kept_of_frames([(TOPK, frame, 9)])
    with pytest.raises(WireError, match="other parameters"):
        kept_of_frames([(get_codec("topk(k=2)|raw32"), frame, 8)])
    # Without a CRC the payload's own checks are the last ones.
    descending = edited(edited(frame[:-4], 5, "B", 0), 32, "<I", 7)
    with pytest.raises(WireError):
        kept_of_frames([(TOPK, descending, 8)])


CHECKED = (
    *(
        "identity",
        "fp16",
        "bf16",
        "sign",
        "onebit",
        "terngrad",
        "int8",
        "int4",
        "fp8",
        "blockwise8",
    ),
    *(
        "qsgd(levels=127)",
        "qsgd(levels=2)",
        "dither(partition=natural,levels=5)",
        "uniform(bits=3)",
    ),
    *("rotate|uniform(bits=4)", "qsgd(levels=127)|rans"),
)
"""Codecs with payloads that can be checked without decoding them."""


@pytest.mark.parametrize("spec", CHECKED)
def test_payloads_are_views_of_their_frames(spec: str) -> None:
    codec = get_codec(spec)
    frames = [codec.encode(gradient(numel), seed=3) for numel in (701, 64, 0)]
    sizes = (701, 64, 0)
    payloads = payloads_of_frames(
        [(codec, frame, numel) for frame, numel in zip(frames, sizes, strict=True)]
    )
    for payload, frame, numel in zip(payloads, frames, sizes, strict=True):
        assert payload.data.tobytes() == codec.encode_payload(gradient(numel), seed=3).tobytes()
        assert numel == 0 or np.shares_memory(payload.data, frame)
        seeded = "seeded" in codec.caps
        assert payload.stream == (derive_stream(3, 0, 0) if seeded else 0)


@pytest.mark.parametrize("spec", CHECKED)
def test_payloads_are_checked_as_by_the_decoder(spec: str) -> None:
    codec = get_codec(spec)
    numel = 701
    sent = codec.encode(gradient(numel), seed=3).tobytes()
    frame = edited(sent[:-4], 5, "B", sent[5] & ~1)  # without its CRC
    refused = 0
    for position in range(
        len(frame) - len(codec.encode_payload(gradient(numel), seed=3)), len(frame)
    ):
        for value in (0, 0x80, 0xFF):
            damaged = edited(frame, position, "B", value)
            error = fault(lambda damaged=damaged: codec.decode(damaged))
            assert (
                fault(lambda damaged=damaged: payloads_of_frames([(codec, damaged, numel)]))
                == error
            )
            refused += error is not None
    # Any bytes of the right size are a payload of these.
    assert (refused > 0) == (spec not in ("identity", "fp16", "bf16", "blockwise8"))


def fault(work: Callable[[], object]) -> str | None:
    try:
        work()
    except WireError as error:
        return str(error)
    return None


def test_wrong_frames_have_no_payload() -> None:
    codec, frame = get_codec("fp16"), get_codec("fp16").encode(gradient(700))
    with pytest.raises(WireError, match="CRC"):
        payloads_of_frames([(codec, edited(frame.tobytes(), 30, "B", frame[30] ^ 1), 700)])
    with pytest.raises(WireError, match="the frame holds 700 elements, not 699"):
        payloads_of_frames([(codec, frame, 699)])
    shorter = edited(edited(frame.tobytes()[:-6], 5, "B", 0), 12, "<I", 1398)
    with pytest.raises(WireError, match="has 1398 bytes; for 700 elements it must have 1400"):
        payloads_of_frames([(codec, shorter, 700)])
    with pytest.raises(SpecError, match="only this codec's decoder can check its payloads"):
        payloads_of_frames([(TOPK, TOPK.encode(gradient(700)), 700)])


@pytest.mark.parametrize("keep", ["ratio=0.07", "ratio=0.5", "ratio=1e-6", "k=1", "k=700"])
def test_the_number_of_kept_elements_is_the_encoder_s(keep: str) -> None:
    codec = get_codec(f"topk({keep})")
    (stage,) = parse(codec.spec).stages
    for numel in (0, 1, 3, 100, 701, 4096):
        [(indices, _)] = kept_of_frames([(codec, codec.encode(gradient(numel)), numel)])
        assert kept_count(stage.params, numel) == indices.size


def test_several_frames_are_opened_by_all_threads_in_their_order() -> None:
    codecs = [get_codec("topk(ratio=0.1)"), get_codec("randomk(ratio=0.05)")]
    given = []
    for number in range(40):
        x = gradient(100 + 97 * number)
        codec = codecs[number % 2]
        given.append((codec, codec.encode(x, seed=number), x.size))
    expected = [kept_of_frames([one])[0] for one in given]
    for setting in settings_of_the_core():
        opened = kept_of_frames(given)
        assert len(opened) == len(expected), setting
        for one, other in zip(opened, expected, strict=True):
            assert [array.tobytes() for array in one] == [array.tobytes() for array in other], (
                setting
            )
    damaged = given[7][1].copy()
    damaged[-1] ^= 1
    with pytest.raises(WireError, match="CRC"):
        kept_of_frames([*given, (given[7][0], damaged, given[7][2])])
