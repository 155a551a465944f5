"""adaptive(coder=polar): groups of elements that become points."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gradcomp
from gradcomp import EncodeItem, SpecError, encode_batch
from gradcomp.codec.frame import split_frames
from support.codecs import vnmse
from support.frames import HEAD
from support.gradients import normal, structured

NO_POINTS = 24


def encoded(spec: str, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Bits per element, the frame and its decode."""
    codec = gradcomp.get_codec(spec)
    frame = codec.encode(x)
    return 8 * frame.size / x.size, frame, codec.decode(frame).reshape(x.shape)


def decibels(spec: str, x: np.ndarray) -> float:
    """The error in decibels, corrected by 6.02 dB for each bit that the frame is off the rate."""
    bits, _, y = encoded(spec, x)
    error = vnmse(x, y)
    rate = float(spec.partition("rate=")[2].partition(",")[0].rstrip(")"))
    return float(10 * np.log10(error) + 20 * np.log10(2) * (bits - rate))


def start_of(frame: np.ndarray) -> int:
    """The byte that says whether there are groups of points."""
    described = int.from_bytes(frame[HEAD + 10 : HEAD + 12].tobytes(), "little")
    return int(frame[HEAD + 12 + described.bit_count()])


@pytest.mark.parametrize("rate", [0.05, 0.25, 0.5, 1, 2, 4])
@pytest.mark.parametrize("shape", [(300, 200), (60_000,), (1000, 70)])
def test_the_rate_asked_for_is_the_rate_on_the_wire(rate: float, shape: tuple[int, ...]) -> None:
    x = (
        structured(*shape, directions=2)
        if len(shape) == 2
        else structured(1, *shape, directions=2).reshape(-1)
    )
    bits, _, _ = encoded(f"adaptive(rate={rate},coder=polar)", x)
    assert abs(bits / rate - 1) < 0.03


@pytest.mark.parametrize(("rate", "gain"), [(0.5, 0.25), (1, 0.8), (2, 0.8)])
@pytest.mark.parametrize("shape", [(512, 512), (200_000,)])
def test_on_normal_elements_points_are_better(
    rate: float, gain: float, shape: tuple[int, ...]
) -> None:
    x = normal(shape)
    ecsq = decibels(f"adaptive(rate={rate},rank=0)", x)
    assert decibels(f"adaptive(rate={rate},rank=0,coder=polar)", x) < ecsq - gain


@pytest.mark.parametrize("rate", [0.05, 0.15, 0.25, 0.35])
def test_where_all_groups_change_at_once_the_rate_is_kept(rate: float) -> None:
    """In noise, no group is busier than the others."""
    x = normal((256, 512))
    bits, _, _ = encoded(f"adaptive(rate={rate},rank=0,coder=polar)", x)
    assert abs(bits / rate - 1) < 0.03
    ecsq = decibels(f"adaptive(rate={rate},rank=0)", x)
    assert decibels(f"adaptive(rate={rate},rank=0,coder=polar)", x) < ecsq + 0.01


@pytest.mark.parametrize("rate", [0.25, 1])
def test_on_gradients_it_is_never_worse(rate: float) -> None:
    for seed in range(3):
        x = structured(200, 160, seed, directions=2)
        ecsq = decibels(f"adaptive(rate={rate})", x)
        assert decibels(f"adaptive(rate={rate},coder=polar)", x) < ecsq + 0.05


def test_only_what_is_busy_becomes_points() -> None:
    """Rows without structure, and between them rows of rare large elements."""
    x = normal((256, 256))
    x[::2] *= np.random.default_rng(1).random((128, 256)) < 0.01
    _, frame, _ = encoded("adaptive(rate=1,rank=0,coder=polar)", x)
    assert start_of(frame) != NO_POINTS
    points = int.from_bytes(band_of(frame)[:4].tobytes(), "little")
    assert 0.4 * x.size < points < 0.6 * x.size


def band_of(frame: np.ndarray) -> np.ndarray:
    """The stream of a frame with points, one band and no pairs."""
    at = HEAD + 10
    for head in (0, 2):  # of the tables of levels and of indices
        described = int.from_bytes(frame[at + head : at + head + 2].tobytes(), "little")
        at += head + 2 + described.bit_count()
    return frame[at:]


def test_where_nothing_is_busy_the_payload_is_that_of_ecsq_and_a_byte() -> None:
    x = np.zeros((256, 256), np.float32)
    x[7, 30::50] = [1, -2, 3, -4, 5]
    frame = gradcomp.get_codec("adaptive(rate=1,coder=polar)").encode(x)
    assert start_of(frame) == NO_POINTS
    ecsq = gradcomp.get_codec("adaptive(rate=1)").encode(x)
    at = HEAD + 12 + int.from_bytes(frame[HEAD + 10 : HEAD + 12].tobytes(), "little").bit_count()
    assert np.delete(frame[HEAD:-4], at - HEAD).tobytes() == ecsq[HEAD:-4].tobytes()


def test_the_usual_coder_is_ecsq() -> None:
    x = structured(100, 80, directions=2)
    _, named, _ = encoded("adaptive(rate=1,coder=ecsq)", x)
    _, usual, _ = encoded("adaptive(rate=1)", x)
    assert named[HEAD:-4].tobytes() == usual[HEAD:-4].tobytes()
    assert "coder" not in gradcomp.get_codec("adaptive(rate=1)").spec


def test_there_is_no_other_coder() -> None:
    with pytest.raises(SpecError, match=r"'coder' must be one of ecsq\|polar, not 'trellis'"):
        gradcomp.get_codec("adaptive(coder=trellis)")


def test_extreme_elements_stay_finite_and_are_sent() -> None:
    codec = gradcomp.get_codec("adaptive(rate=2,coder=polar)")
    for scale in (1e-21, 1e19, 1e35):
        x = normal((64, 64)) * np.float32(scale)
        x[5, 7] = 3000 * scale  # too many steps for a point
        frame = codec.encode(x)
        y = codec.decode(frame).reshape(x.shape)
        assert start_of(frame) != NO_POINTS
        assert np.isfinite(y).all()
        assert abs(y[5, 7] / x[5, 7] - 1) < 1e-3
        assert np.abs(x - y)[6:].max() < scale


def test_nothing_but_zeros_takes_one_byte() -> None:
    codec = gradcomp.get_codec("adaptive(coder=polar)")
    frame = codec.encode(np.zeros(1000, np.float32))
    assert frame.size == HEAD + 1 + 4
    assert (codec.decode(frame) == 0).all()


def test_error_feedback_leaves_exactly_what_was_not_sent() -> None:
    codec = gradcomp.get_codec("adaptive(rate=1,coder=polar)")
    residual = np.zeros(100 * 90, np.float32)
    for step in range(3):
        grad = normal((100, 90), seed=step)
        corrected = residual + grad.reshape(-1)
        data, _ = encode_batch([EncodeItem(codec, grad, residual=residual)])
        np.testing.assert_array_equal(residual, corrected - codec.decode(data))


def test_steps_that_begin_from_the_last_one_keep_to_the_rate() -> None:
    codec = gradcomp.get_codec("adaptive(rate=1,coder=polar)")
    shapes = [(120, 100), (5000,), (64, 9), (20,)]
    numel = sum(math.prod(shape) for shape in shapes)
    carried = [np.zeros(codec.carried, np.float32) for _ in shapes]
    residuals = [np.zeros(math.prod(shape), np.float32) for shape in shapes]
    with_points = 0
    for step in range(6):
        bucket = [
            structured(*shape, seed=step, directions=2)
            if len(shape) == 2
            else normal(shape, seed=step)
            for shape in shapes
        ]
        corrected = [r + x.reshape(-1) for r, x in zip(residuals, bucket, strict=True)]
        items = zip(bucket, carried, residuals, strict=True)
        data, _ = encode_batch([EncodeItem(codec, x, carried=c, residual=r) for x, c, r in items])
        assert abs(8 * data.size / numel - 1) < 0.03
        frames = split_frames(data, len(shapes))
        for frame, original, residual in zip(frames, corrected, residuals, strict=True):
            np.testing.assert_array_equal(residual, original - codec.decode(frame))
        with_points += start_of(frames[0]) != NO_POINTS
    assert with_points > 0
    assert all(one[0] > 0 for one in carried[:-1])
