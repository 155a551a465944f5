"""adaptive(error=E): the part of the mean energy that a bucket leaves unsent, and its bounds in bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

import gradcomp
from gradcomp import EncodeItem, SpecError, encode_batch
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.frame import split_frames
from support.codecs import settings_of_the_core
from support.frames import HEAD
from support.gradients import structured

WEIGHT = 0.05
"""Of a step in the running mean of energies; docs/codecs/adaptive.md states it."""


class Step(NamedTuple):
    """Results of one step of a bucket with error feedback."""

    unsent: float
    """Energy of the residuals, in parts of the mean energy of the gradients."""
    bits: float
    """On the wire, for each element."""
    frames: list[bytes]


def energy(bucket: Sequence[FloatArray]) -> float:
    return sum(float(np.sum(np.square(x, dtype=np.float64))) for x in bucket)


def bucket_of(step: int, scale: float = 1) -> list[FloatArray]:
    """A matrix with structure, one without, and a vector of other sizes."""
    rng = np.random.default_rng(step)
    return [
        np.float32(scale) * structured(160, 120, step),
        np.float32(0.3 * scale) * rng.normal(size=(90, 70)).astype(np.float32),
        np.float32(2 * scale) * rng.laplace(size=500).astype(np.float32),
    ]


def train(spec: str, steps: Sequence[Sequence[FloatArray]]) -> list[Step]:
    """Encode buckets with error feedback and the state that an engine keeps."""
    codec = gradcomp.get_codec(spec)
    residuals = [np.zeros(x.shape, np.float32) for x in steps[0]]
    carried = [np.zeros(codec.carried, np.float32) for _ in steps[0]]
    mean, weight, results = 0.0, 0.0, []
    for bucket in steps:
        data, _ = encode_batch(
            [
                EncodeItem(codec, x, residual=residual, carried=numbers)
                for x, residual, numbers in zip(bucket, residuals, carried, strict=True)
            ]
        )
        mean += WEIGHT * (energy(bucket) - mean)
        weight += WEIGHT * (1 - weight)
        frames = [frame.tobytes() for frame in split_frames(data, len(bucket))]
        bits = 8 * data.size / sum(x.size for x in bucket)
        results.append(Step(energy(residuals) / (mean / weight), bits, frames))
    return results


@pytest.mark.parametrize("error", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("options", [",rank=0", "", ",preset=basis"])
def test_the_error_asked_for_is_what_waits(error: float, options: str) -> None:
    found = [
        step.unsent
        for step in train(f"adaptive(error={error}{options})", [bucket_of(t) for t in range(24)])
    ]
    assert max(found) < 1.1 * error
    # The first steps may leave less: a few pairs are enough, and no levels follow them.
    assert min(found[4:]) > 0.9 * error
    assert abs(np.mean(found[4:]) / error - 1) < 0.05


def test_steps_of_other_sizes_are_measured_by_the_running_mean() -> None:
    scales = [1.0] * 10 + [0.1] * 3 + [4.0] * 2 + [1.0] * 5
    results = train("adaptive(error=0.1)", [bucket_of(t, s) for t, s in enumerate(scales)])
    small, large = results[10:13], results[13:15]
    # Small gradients may wait as a whole: all but the last residual's share of the bytes is saved.
    assert max(step.bits for step in small) < 0.7 * results[9].bits
    assert min(step.bits for step in large) > results[9].bits
    assert max(step.unsent for step in results) < 0.2


def test_a_spike_counts_little_in_the_running_mean() -> None:
    results = train("adaptive(error=0.1)", [bucket_of(t, 1e6 if t == 6 else 1) for t in range(12)])
    # Most of the spike is sent at once, at max_rate.
    assert results[6].unsent < 0.01
    # Steps after it send about as much as those before it.
    assert min(step.bits for step in results[8:]) > 0.5 * results[5].bits


def test_what_may_wait_as_a_whole_takes_a_byte_and_is_sent_later() -> None:
    steps = [bucket_of(0)] + [bucket_of(0, 0.05)] * 30
    codec_frames = [step.frames for step in train("adaptive(error=0.5)", steps)]
    assert all(len(frame) == HEAD + 1 + 4 for frame in codec_frames[1])
    assert any(len(frame) > HEAD + 1 + 4 for frames in codec_frames[2:] for frame in frames)


def test_without_state_it_is_the_error_of_the_tensor() -> None:
    codec = gradcomp.get_codec("adaptive(error=0.1)")
    for x in bucket_of(3):
        off = x - codec.decode(codec.encode(x)).reshape(x.shape)
        assert abs(energy([off]) / energy([x]) / 0.1 - 1) < 0.1


def test_bits_stay_within_their_bounds() -> None:
    steps = [bucket_of(t) for t in range(8)]
    free = np.mean([step.bits for step in train("adaptive(error=0.05)", steps)])
    most = [step.bits for step in train("adaptive(error=0.05,max_rate=0.5)", steps)]
    assert free > 0.52
    assert max(most) < 0.5 * 1.03
    least = train("adaptive(error=0.6,min_rate=0.8)", steps)
    assert min(step.bits for step in least) > 0.8 * 0.97
    assert max(step.unsent for step in least) < 0.5


def test_elements_of_one_magnitude_are_sent() -> None:
    """No step leaves a tenth of their energy: the finer of two is taken."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(64, 64)).astype(np.float32)
    for spec in ("adaptive(error=0.1)", "adaptive(error=0.1,max_rate=0.5)"):
        results = train(spec, [[signs]] * 60)
        assert max(step.bits for step in results) < 3.5
    unsent = [step.unsent for step in results]
    assert np.mean(unsent[40:]) < 1.2 * np.mean(unsent[20:40])


def test_an_unusable_mean_begins_anew() -> None:
    codec = gradcomp.get_codec("adaptive(error=0.1)")
    x = structured(64, 48)
    expected, _ = encode_batch([EncodeItem(codec, x, carried=np.zeros(codec.carried, np.float32))])
    for bad in (np.nan, np.inf, -1.0):
        carried = np.full(codec.carried, bad, np.float32)
        data, _ = encode_batch([EncodeItem(codec, x, carried=carried)])
        np.testing.assert_array_equal(data, expected)
        assert np.isfinite(carried).all()
    broken = x.copy()
    broken[3, 4] = np.inf
    before = carried.copy()
    encode_batch([EncodeItem(codec, broken, carried=carried)])
    np.testing.assert_array_equal(carried, before)


def test_the_same_bytes_on_all_levels_and_threads() -> None:
    steps = [[structured(1200, 1000, t), *bucket_of(t)] for t in range(3)]
    found = {
        tuple(frame for step in train("adaptive(error=0.2)", steps) for frame in step.frames)
        for _ in settings_of_the_core(threads=(1, 3))
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adaptive(error=0.1,rate=0.5)", "takes either 'rate' or 'error', not both"),
        ("adaptive(error=0)", r"in \[0.001, 0.9\]"),
        ("adaptive(rate=1,max_rate=2)", "min_rate and max_rate are bounds of a spec with error"),
        ("adaptive(error=0.1,min_rate=2,max_rate=1)", "min_rate is above max_rate"),
        ("adaptive(error=0.1,coder=polar)", "coder=polar needs a rate, not an error"),
    ],
)
def test_specs_that_make_no_sense_are_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        gradcomp.get_codec(spec)
