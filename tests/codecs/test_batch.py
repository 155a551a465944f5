"""Many tensors in one call: the same as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import (
    CapacityError,
    Codec,
    DecodeItem,
    EncodeItem,
    WireError,
    _core,
    decode_batch_add,
    encode_batch,
    get_codec,
)
from gradcomp.codec.frame import split_frames
from gradcomp.codec.spec import stages

# Around the size from which a tensor is worked on by several threads.
SIZES = [0, 1, 700, 65_536, 65_537, 150_000]
SPECS = [stage.example for stage in stages() if stage.kind == "codec"]


def gradients() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(n, np.float32) for n in SIZES]


@pytest.fixture(params=[1, 2, 3], autouse=True)
def _threads(request: pytest.FixtureRequest) -> None:
    _core.set_thread_count(request.param)


# Units that pieces of a sum cannot have, frames that are decoded whole or in pieces, units across pieces.
PIECES = [
    "int8(bucket=100)",
    "int4(bucket=17)",
    "fp8(bucket=65536)",
    "topk(ratio=0.5)",
    "topk(ratio=0.05)",
    "topk(ratio=0.001)",
    "threshold(tau=3.2)",
    "chunktopk(ratio=0.05,chunk=1000)",
]


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if "whole_bucket" not in get_codec(spec).caps]
)
def test_frames_are_those_of_single_calls(spec: str) -> None:
    codec = get_codec(spec)
    grads = gradients()
    tensors = [EncodeItem(codec, grad, 1, 2, i) for i, grad in enumerate(grads)]
    data, sizes = encode_batch(tensors)
    singles = [codec.encode(one.grad, seed=1, step=2, tensor_id=one.tensor_id) for one in tensors]
    assert sizes == [frame.size for frame in singles]
    assert data.tobytes() == b"".join(frame.tobytes() for frame in singles)
    sums = [np.ones_like(grad) for grad in grads]
    frames = split_frames(data, len(grads))
    decode_batch_add(
        [
            DecodeItem("w", codec, [frame, frame], out)
            for frame, out in zip(frames, sums, strict=True)
        ],
        0.25,
    )
    for frame, out in zip(singles, sums, strict=True):
        expected = np.ones_like(out)
        for _ in range(2):
            codec.decode_add(frame, expected, 0.25)
        assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("frames", [0, 1, 8, 10])
@pytest.mark.parametrize("spec", SPECS + PIECES)
def test_sums_that_replace_are_those_of_single_calls(spec: str, frames: int) -> None:
    codec = get_codec(spec)
    grads = gradients()
    of_ranks = [
        [
            codec.encode(grad * (1 + rank % 2), seed=1, step=2, tensor_id=rank)
            for rank in range(frames)
        ]
        for grad in grads
    ]
    sums = [np.full_like(grad, np.nan) for grad in grads]
    tensors = [
        DecodeItem("w", codec, own, out, replaces=True)
        for own, out in zip(of_ranks, sums, strict=True)
    ]
    decode_batch_add(tensors, 0.25)
    for own, out in zip(of_ranks, sums, strict=True):
        expected = np.zeros_like(out)
        for frame in own:
            codec.decode_add(frame, expected, 0.25)
        assert out.tobytes() == expected.tobytes()
        decode_batch_add([DecodeItem("w", codec, own, out)], 0.25)  # adds
        for frame in own:
            codec.decode_add(frame, expected, 0.25)
        assert out.tobytes() == expected.tobytes()


SLOW = [
    *(spec for spec in SPECS if get_codec(spec).decodes_slowly),
    "adaptive(rate=1,coder=polar)",
    "rotate|polar(rate=2)",
]


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("spec", SLOW)
def test_the_own_frame_is_decoded_once(spec: str, finite: bool) -> None:
    codec = get_codec(spec)
    grads = gradients()
    if not finite:
        grads[2][5], grads[5][7] = np.nan, np.inf
    given = [np.full_like(grad, 0.25) for grad in grads]
    plain, kept = [one.copy() for one in given], [one.copy() for one in given]
    decoded = [np.full_like(grad, np.nan) for grad in grads]
    expected, sizes = encode_batch(
        [
            EncodeItem(codec, grad, 1, 2, i, residual, 0.5)
            for i, (grad, residual) in enumerate(zip(grads, plain, strict=True))
        ]
    )
    data, _ = encode_batch(
        [
            EncodeItem(codec, grad, 1, 2, i, residual, 0.5, decoded=own)
            for i, (grad, residual, own) in enumerate(zip(grads, kept, decoded, strict=True))
        ]
    )
    assert data.tobytes() == expected.tobytes()
    frames = split_frames(data, len(sizes))
    for frame, own, before, after in zip(frames, decoded, plain, kept, strict=True):
        assert after.tobytes() == before.tobytes()
        assert own.tobytes() == codec.decode(frame).tobytes()


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("own", [0, 1, 8])
@pytest.mark.parametrize("spec", [*SLOW, "int8(bucket=128)"])
def test_a_known_frame_is_taken_from_memory(spec: str, own: int, replaces: bool) -> None:
    codec = get_codec(spec)
    for grad in gradients():
        frames = [codec.encode(grad * (1 + i % 2), seed=1, tensor_id=i) for i in range(9)]
        sums = [np.ones_like(grad), np.ones_like(grad)]
        known = own, codec.decode(frames[own])
        for out, given in zip(sums, (None, known), strict=True):
            tensor = DecodeItem("w", codec, frames, out, replaces=replaces, known=given)
            decode_batch_add([tensor], 0.25)
        assert sums[1].tobytes() == sums[0].tobytes()
        other = np.zeros_like(grad)
        wrong = own, np.full_like(grad, 3)
        decode_batch_add([DecodeItem("w", codec, [frames[own]], other, known=(0, wrong[1]))], 0.25)
        np.testing.assert_array_equal(other, np.full_like(grad, 0.75))


def test_a_known_frame_is_checked() -> None:
    codec = get_codec("adaptive(rate=0.5)")
    (grad,) = (one for one in gradients() if one.size == 700)
    frame = codec.encode(grad)
    damaged = frame.copy()
    damaged[-1] ^= 1
    tensor = DecodeItem("w", codec, [frame, damaged], np.zeros_like(grad), known=(1, grad))
    with pytest.raises(WireError, match="rank 1 for 'w'"):
        decode_batch_add([tensor])
    with pytest.raises(ValueError, match="elements"):
        decode_batch_add([tensor._replace(frames=[frame], known=(0, grad[:-1]))])
    with pytest.raises(ValueError, match="elements"):
        encode_batch([EncodeItem(codec, grad, residual=grad * 0, decoded=grad[:-1].copy())])


def law(codec: Codec, grad: np.ndarray, residual: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Error feedback step by step: the frame, and the residual after it."""
    corrected = np.float32(0.75) * residual + np.float32(1.5) * grad
    frame = codec.encode(corrected, seed=5)
    codec.decode_add(frame, corrected, -1.0)
    corrected[~np.isfinite(corrected)] = 0
    return frame.tobytes(), corrected


@pytest.mark.parametrize("kind", ["finite", "huge", "nonfinite"])
@pytest.mark.parametrize(
    "spec",
    [
        *SPECS,
        "rotate|uniform(bits=4)|rans",
        "qsgd(bucket=1000)",
        "qsgd(levels=3,norm=l2,bucket=100000)|rans",
        "int8(bucket=1000)",
        "dither(partition=natural,bucket=128)",
        "eden(bits=1)",
    ],
)
def test_fused_error_feedback_is_that_of_its_parts(spec: str, kind: str) -> None:
    codec = get_codec(spec)
    rng = np.random.default_rng(2)
    for level in _core.simd_levels():
        _core.set_simd_level(level)
        for n in (1, 700, 150_000):
            grad = rng.standard_normal(n, np.float32)
            residual = rng.standard_normal(n, np.float32)
            if kind == "huge":
                grad *= np.float32(5e37)
            elif kind == "nonfinite":
                grad[n // 2] = np.nan
                residual[n // 3] = np.inf
            with np.errstate(invalid="ignore", over="ignore"):
                frame, expected = law(codec, grad, residual)
            before = grad.copy()
            data, _ = encode_batch([EncodeItem(codec, grad, 5, 0, 0, residual, 0.75, 1.5)])
            assert data.tobytes() == frame
            assert residual.tobytes() == expected.tobytes()
            assert grad.tobytes() == before.tobytes()


def test_tensors_of_a_batch_have_codecs_and_residuals_of_their_own() -> None:
    grads = gradients()
    residual = np.ones(700, np.float32)
    data, _ = encode_batch(
        [
            EncodeItem(get_codec("sign"), grads[2], residual=residual, beta=0.5),
            EncodeItem(get_codec("topk(k=3)"), grads[3]),
            EncodeItem(get_codec("fp16"), grads[1]),
        ]
    )
    first, second, third = split_frames(data, 3)
    corrected = grads[2] + np.float32(0.5)
    assert first.tobytes() == get_codec("sign").encode(corrected).tobytes()
    assert second.tobytes() == get_codec("topk(k=3)").encode(grads[3]).tobytes()
    assert third.tobytes() == get_codec("fp16").encode(grads[1]).tobytes()
    np.testing.assert_array_equal(residual, corrected - get_codec("sign").decode(first))


def decoded(tensors: list[EncodeItem]) -> list[np.ndarray]:
    data, _ = encode_batch(tensors)
    frames = split_frames(data, len(tensors))
    return [one.codec.decode(frame) for one, frame in zip(tensors, frames, strict=True)]


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["normal", "scaled", "ties", "zero", "ascending"])
def test_globaltopk_is_topk_of_all_tensors_together(kind: str, ratio: float) -> None:
    grads = gradients()
    for i, grad in enumerate(grads):
        if kind == "scaled":
            grad *= np.float32(10.0**-i)
        elif kind == "ties":
            np.round(grad, out=grad)
        elif kind == "zero":
            grad[:] = 0
        elif kind == "ascending":
            grad[:] = np.arange(grad.size)
    codec = get_codec(f"globaltopk(ratio={ratio})")
    together = np.concatenate(grads)
    topk = get_codec(f"topk(ratio={ratio})")
    expected = topk.decode(topk.encode(together))
    parts = decoded([EncodeItem(codec, grad) for grad in grads])
    assert np.concatenate(parts).tobytes() == expected.tobytes()
    # With error feedback the corrected gradients count.
    residuals = [np.full_like(grad, 0.5) for grad in grads]
    parts = decoded(
        [
            EncodeItem(codec, grad, residual=residual)
            for grad, residual in zip(grads, residuals, strict=True)
        ]
    )
    corrected = together + np.float32(0.5)
    expected = topk.decode(topk.encode(corrected))
    assert np.concatenate(parts).tobytes() == expected.tobytes()
    np.testing.assert_array_equal(np.concatenate(residuals), corrected - expected)


def test_globaltopk_of_other_parameters_is_another_bucket() -> None:
    a, b = (np.arange(1, 101, dtype=np.float32) * scale for scale in (1, 1000))
    one, other = get_codec("globaltopk(k=10)"), get_codec("globaltopk(k=20)")
    parts = decoded(
        [EncodeItem(one, a), EncodeItem(other, a), EncodeItem(one, b), EncodeItem(other, b)]
    )
    assert [np.count_nonzero(part) for part in parts] == [0, 0, 10, 20]
    (alone,) = decoded([EncodeItem(one, a)])
    assert np.count_nonzero(alone) == 10


def test_an_empty_batch() -> None:
    data, sizes = encode_batch([])
    assert (data.size, sizes) == (0, [])
    decode_batch_add([])


def test_a_bad_frame_is_named() -> None:
    codec = get_codec("fp16")
    grads = gradients()
    good = [codec.encode(grad) for grad in grads]
    bad = good[2].copy()
    bad[-1] ^= 1
    tensors = [
        DecodeItem(f"t{i}", codec, [good[i], bad if i == 2 else good[i]], np.zeros_like(grad))
        for i, grad in enumerate(grads)
    ]
    with pytest.raises(WireError, match="the frame of rank 1 for 't2': the frame is damaged"):
        decode_batch_add(tensors)
    with pytest.raises(WireError, match="rank 0 for 'w': the frame holds 700 elements, not 699"):
        decode_batch_add([DecodeItem("w", codec, [good[2]], np.zeros(699, np.float32))])


def test_arrays_that_do_not_fit_are_refused() -> None:
    codec = get_codec("fp16")
    grad = np.zeros(10, np.float32)
    for wrong in (grad.astype(np.float64), grad[::2], np.zeros(10, np.float16)):
        with pytest.raises(TypeError, match="not a C-contiguous array of the right dtype"):
            encode_batch([EncodeItem(codec, wrong)])
    with pytest.raises(ValueError, match="residual and gradient differ in size"):
        encode_batch([EncodeItem(codec, grad, residual=np.zeros(9, np.float32))])
    with pytest.raises(TypeError, match="right dtype"):
        decode_batch_add([DecodeItem("w", codec, [codec.encode(grad)], np.zeros(10, np.float64))])


def test_a_tensor_that_is_too_large() -> None:
    huge = np.empty(2**30, np.float32)  # never touched
    with pytest.raises(CapacityError, match="1073741824 elements: at most 1073741823 are allowed"):
        encode_batch([EncodeItem(get_codec("sign"), huge)])
