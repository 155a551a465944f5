"""adaptive: rate, rank, buckets, and state that is carried from step to step."""

from __future__ import annotations

import numpy as np
import pytest

import gradcomp
from gradcomp import EncodeItem, SpecError, encode_batch
from gradcomp.codec.frame import split_frames
from support.codecs import error_of, settings_of_the_core
from support.frames import HEAD
from support.gradients import structured

RATES = [0.05, 0.1, 0.25, 0.5, 1, 2, 4]


def rank_of(frame: np.ndarray) -> int:
    return int(frame[HEAD]) >> 3


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("shape", [(300, 200), (60_000,), (1000, 70)])
def test_the_rate_asked_for_is_the_rate_on_the_wire(rate: float, shape: tuple[int, ...]) -> None:
    x = structured(*shape) if len(shape) == 2 else structured(1, *shape).reshape(-1)
    frame = gradcomp.get_codec(f"adaptive(rate={rate})").encode(x)
    assert abs(8 * frame.size / x.size / rate - 1) < 0.03


@pytest.mark.parametrize("rate", [0.05, 0.25, 1])
def test_the_rate_is_that_of_the_whole_bucket(rate: float) -> None:
    codec = gradcomp.get_codec(f"adaptive(rate={rate})")
    bucket = [
        100 * structured(128, 256),
        structured(200, 300, 1),
        structured(1, 128, 2).reshape(-1),
        structured(64, 9, 3).reshape(64, 1, 3, 3),
    ]
    data, sizes = encode_batch([EncodeItem(codec, x) for x in bucket])
    assert abs(8 * data.size / sum(x.size for x in bucket) / rate - 1) < 0.03
    # All tensors have one quantization step, so larger ones take more bits.
    assert sizes[0] > 2 * sizes[1]
    steps = set()
    for frame, x in zip(split_frames(data, len(bucket)), bucket, strict=True):
        if frame.size > HEAD + 4 + 1:
            steps.add(frame[HEAD + 6 : HEAD + 10].tobytes())
        assert codec.decode(frame).size == x.size
    assert len(steps) == 1


@pytest.mark.parametrize("coder", ["", ",coder=polar"])
@pytest.mark.parametrize("rate", [0.25, 1])
def test_steps_follow_the_root_of_the_root_mean_square(rate: float, coder: str) -> None:
    codec = gradcomp.get_codec(f"adaptive(rate={rate},step=energy{coder})")
    scales = np.float32([1, 0.1, 10, 1e-9])
    carried = [np.zeros(codec.carried, np.float32) for _ in scales]
    residuals = [np.zeros(180 * 120, np.float32) for _ in scales]
    for step in range(3):
        bucket = [
            scale * structured(180, 120, 10 * number + step) for number, scale in enumerate(scales)
        ]
        corrected = [left + x.reshape(-1) for left, x in zip(residuals, bucket, strict=True)]
        items = [
            EncodeItem(codec, x, carried=one, residual=left)
            for x, one, left in zip(bucket, carried, residuals, strict=True)
        ]
        data, _ = encode_batch(items)
        assert abs(8 * data.size / sum(x.size for x in bucket) / rate - 1) < 0.03
        frames = split_frames(data, len(bucket))
        for frame, whole, left in zip(frames, corrected, residuals, strict=True):
            np.testing.assert_array_equal(left, whole - codec.decode(frame))
        # Those of the gradients, whatever waits.
        found = [float(frame[HEAD + 6 : HEAD + 10].view("<f4")[0]) for frame in frames[:3]]
        energies = [float(np.mean(x.astype(np.float64) ** 2)) for x in bucket[:3]]
        np.testing.assert_allclose(
            np.divide(found, found[0]), np.divide(energies, energies[0]) ** 0.25, rtol=1e-5
        )
        # Its root mean square would have a finer step than 1 / 32 of the bucket's.
        assert frames[3].size == HEAD + 4 + 1


def test_error_falls_with_the_rate() -> None:
    x = structured(256, 192)
    errors = [error_of(f"adaptive(rate={rate})", x) for rate in RATES]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-2


def test_structure_is_found_and_pays() -> None:
    x = structured(256, 192)
    frame = gradcomp.get_codec("adaptive(rate=0.25)").encode(x)
    assert rank_of(frame) > 0
    shuffled = np.random.default_rng(1).permutation(x.reshape(-1)).reshape(x.shape)
    assert rank_of(gradcomp.get_codec("adaptive(rate=0.25)").encode(shuffled)) == 0
    auto = error_of("adaptive(rate=0.25)", x)
    assert auto < 0.8 * error_of("adaptive(rate=0.25,rank=0)", x)
    # A vector has neither columns nor rank.
    assert error_of("adaptive(rate=0.25)", x.reshape(-1)) > 1.2 * auto
    assert rank_of(gradcomp.get_codec("adaptive(rate=0.25)").encode(x.reshape(-1))) == 0


@pytest.mark.parametrize("rank", [0, 1, 2, 4, 8, 16])
def test_a_fixed_rank_is_kept(rank: int) -> None:
    x = structured(120, 100)
    assert rank_of(gradcomp.get_codec(f"adaptive(rate=2,rank={rank})").encode(x)) == rank


def test_it_beats_topk_and_a_global_quantizer_on_gradients_of_matrices() -> None:
    x = structured(400, 300)
    assert error_of("adaptive(rate=0.25)", x) < 0.7 * error_of(
        "topk(ratio=0.0125,values=int8)|rice", x
    )


def test_nothing_but_zeros_takes_one_byte_and_a_nan_makes_all_nan() -> None:
    codec = gradcomp.get_codec("adaptive")
    for n in (64, 100_000):
        frame = codec.encode(np.zeros(n, np.float32))
        assert frame.size == HEAD + 1 + 4
        assert (codec.decode(frame) == 0).all()
        x = np.ones(n, np.float32)
        x[n // 2] = np.inf
        assert np.isnan(codec.decode(codec.encode(x))).all()
    small = np.array([1, np.nan, np.inf], np.float32)
    np.testing.assert_array_equal(codec.decode(codec.encode(small)), small)


def test_extreme_elements_stay_finite_and_are_sent() -> None:
    codec = gradcomp.get_codec("adaptive(rate=1)")
    x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    for scale in (1e-20, 1e20, 1e38):
        y = codec.decode(codec.encode(x * np.float32(scale / 10)))
        assert np.isfinite(y).all()
        assert 0 < np.abs(y).max() < np.inf
    x[5, 7] = 3e38
    y = codec.decode(codec.encode(x)).reshape(x.shape)
    assert abs(y[5, 7] / np.float32(3e38) - 1) < 1e-3


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(
    "params",
    ["rate=0.1", "rate=1,rank=0", "rate=1,rank=2", "rate=1,coder=polar", "rate=1,step=energy"],
)
def test_error_feedback_leaves_exactly_what_was_not_sent(params: str, keeps: bool) -> None:
    """Also where elements are far beyond the levels of the tables."""
    codec = gradcomp.get_codec(f"adaptive({params})")
    residual = np.zeros(200 * 100, np.float32)
    sent = np.zeros(200 * 100, np.float64)
    total = np.zeros(200 * 100, np.float64)
    for step in range(5):
        grad = structured(200, 100, step)
        grad[step, :20] *= 1000
        corrected = residual + grad.reshape(-1)
        kept = np.full(residual.size, np.nan, np.float32) if keeps else None
        data, _ = encode_batch([EncodeItem(codec, grad, residual=residual, decoded=kept)])
        decoded = codec.decode(data)
        np.testing.assert_array_equal(residual, corrected - decoded)
        if kept is not None:
            assert kept.tobytes() == decoded.tobytes()
        sent += decoded
        total += grad.reshape(-1)
    assert np.abs(sent + residual - total).max() < 1e-3 * np.abs(total).max()


def test_small_tensors_are_sent_sooner_or_later() -> None:
    codec = gradcomp.get_codec("adaptive(rate=0.02)")
    x = structured(8, 16)
    assert error_of("adaptive(rate=0.02)", x) < 1
    assert codec.encode(x).size < HEAD + 4 + 60


@pytest.mark.parametrize("spec", ["adaptive(rate=0.01)", "adaptive(rank=3)", "adaptive|rans"])
def test_specs_that_make_no_sense_are_refused(spec: str) -> None:
    with pytest.raises(SpecError):
        gradcomp.get_codec(spec)


@pytest.mark.parametrize(
    ("rate", "rank", "rows", "coder"), [(0.3, 2, 1200, "ecsq"), (1, 1, 1100, "polar")]
)
def test_bands_are_the_same_on_all_levels_and_threads(
    rate: float, rank: int, rows: int, coder: str
) -> None:
    """More than 2^20 elements, so that there are two bands, one of them short."""
    x = structured(rows, 1000)
    codec = gradcomp.get_codec(f"adaptive(rate={rate},rank={rank},coder={coder})")
    results = set()
    for _ in settings_of_the_core(threads=(1, 3)):
        frame = codec.encode(x)
        added = np.ones(x.size, np.float32)
        codec.decode_add(frame, added, 0.5)
        results.add((frame.tobytes(), codec.decode(frame).tobytes(), added.tobytes()))
    ((frame_bytes, decoded, added_bytes),) = results
    y = np.frombuffer(decoded, np.float32)
    assert abs(8 * len(frame_bytes) / x.size / rate - 1) < 0.03
    assert rank_of(np.frombuffer(frame_bytes, np.uint8)) == rank
    if coder == "polar":  # behind the tables: whether there are points
        described = int.from_bytes(frame_bytes[HEAD + 10 : HEAD + 12], "little")
        assert frame_bytes[HEAD + 12 + described.bit_count()] < 24
    np.testing.assert_array_equal(
        np.frombuffer(added_bytes, np.float32), np.float32(1) + np.float32(0.5) * y
    )
    # The second band is as good as the first.
    error = (x.reshape(-1) - y).reshape(x.shape).astype(np.float64) ** 2
    parts = [
        np.sum(error[band]) / np.sum(x[band].astype(np.float64) ** 2)
        for band in (slice(0, 1048), slice(1048, None))
    ]
    assert max(parts) < 2 * min(parts) < 1


# ------------------------------------------------------------------------------------------ steps

SHAPES = [(150, 120), (300, 90), (3000,), (64, 9), (20,)]
CODEC = gradcomp.get_codec("adaptive(rate=0.25)")


@pytest.mark.parametrize("coder", ["ecsq", "polar"])
@pytest.mark.parametrize(
    ("rows", "cols", "states"), [(64, 64, 1), (64, 100, 2), (128, 200, 8), (400, 201, 32)]
)
def test_any_number_of_states_decodes_the_same_on_all_levels(
    rows: int, cols: int, states: int, coder: str
) -> None:
    codec = gradcomp.get_codec(f"adaptive(rate={0.5 if states == 1 else 1},coder={coder})")
    x = structured(rows, cols)
    frame = codec.encode(x)
    assert 1 << (int(frame[24]) & 7) == states
    (decoded,) = {codec.decode(frame).tobytes() for _ in settings_of_the_core(threads=(1,))}
    error = np.linalg.norm(np.frombuffer(decoded, np.float32) - x.reshape(-1))
    assert error < 0.6 * np.linalg.norm(x)


@pytest.mark.parametrize(("rows", "states"), [(600, 8), (3000, 32)])
def test_rows_that_end_anywhere_in_a_group_are_the_same_on_all_levels(
    rows: int, states: int
) -> None:
    codec = gradcomp.get_codec("adaptive(rate=1,rank=0)")
    for cols in range(33, 64):
        x = structured(rows, cols)
        results = set()
        for _ in settings_of_the_core(threads=(1,)):
            frame = codec.encode(x)
            results.add((frame.tobytes(), codec.decode(frame).tobytes()))
        ((data, decoded),) = results
        assert 1 << (data[24] & 7) == states
        error = np.linalg.norm(np.frombuffer(decoded, np.float32) - x.reshape(-1))
        assert error < 0.6 * np.linalg.norm(x)


def test_what_levels_stand_for_is_found_in_all_columns() -> None:
    """Long rows with zeros in the first quarter have the levels of the same rows rolled by half."""
    x = np.random.default_rng(0).laplace(size=(64, 16384)).astype(np.float32)
    x[:, :4096] = 0
    codec = gradcomp.get_codec("adaptive(rate=0.5,rank=0)")
    found = [int(codec.encode(one)[25]) for one in (x, np.roll(x, 8192, axis=1))]
    for first, second in zip(*((byte & 15, byte >> 4) for byte in found), strict=True):
        assert abs(first - second) <= 1
    assert found[0] != 0x88  # no element at all


def bucket_of(step: int) -> list[np.ndarray]:
    """Gradients that change from step to step, and keep their structure."""
    bucket = []
    for number, shape in enumerate(SHAPES):
        fixed, rng = (np.random.default_rng([number, one]) for one in (0, 1 + step))
        rows, cols = shape if len(shape) == 2 else (1, *shape)
        scales = np.exp(fixed.normal(size=(rows, 1)) + fixed.normal(size=cols))
        pairs = rng.normal(size=(rows, 3)) @ fixed.normal(size=(3, cols))
        x = rng.lognormal(0, 0.3) * (scales * rng.normal(size=(rows, cols)) + 6 * pairs)
        bucket.append(x.reshape(shape).astype(np.float32))
    return bucket


def fresh() -> list[np.ndarray]:
    return [np.zeros(CODEC.carried, np.float32) for _ in SHAPES]


def encode_step(step: int, carried: list[np.ndarray]) -> np.ndarray:
    tensors = zip(bucket_of(step), carried, strict=True)
    return encode_batch([EncodeItem(CODEC, x, carried=one) for x, one in tensors])[0]


def error_of_step(step: int, data: np.ndarray) -> float:
    bucket = bucket_of(step)
    frames = split_frames(data, len(bucket))
    off = (x.reshape(-1) - CODEC.decode(f) for x, f in zip(bucket, frames, strict=True))
    return sum(float(np.sum(one.astype(np.float64) ** 2)) for one in off)


def test_steps_that_begin_from_the_last_one_keep_to_the_rate_and_are_as_good() -> None:
    carried = fresh()
    numel = sum(x.size for x in bucket_of(0))
    own, anew = 0.0, 0.0
    for step in range(20):
        data = encode_step(step, carried)
        assert abs(8 * data.size / numel / 0.25 - 1) < 0.03
        own += error_of_step(step, data)
        anew += error_of_step(step, encode_step(step, fresh()))
    assert own < 1.03 * anew


def test_what_is_carried_decides_the_bytes_alone() -> None:
    carried = fresh()
    before = [encode_step(step, carried).tobytes() for step in range(4)]
    saved = [one.copy() for one in carried]
    expected = [encode_step(step, carried).tobytes() for step in range(4, 7)]
    assert expected[0] != encode_step(4, fresh()).tobytes()
    for _ in settings_of_the_core(threads=(1, 3)):
        again = fresh()
        assert [encode_step(step, again).tobytes() for step in range(4)] == before
        again = [one.copy() for one in saved]
        assert [encode_step(step, again).tobytes() for step in range(4, 7)] == expected
        assert [one.tobytes() for one in again] == [one.tobytes() for one in carried]


def test_ranks_follow_gradients_that_change() -> None:
    noise = np.random.default_rng(0).normal(size=(120, 100)).astype(np.float32)
    carried = np.zeros(CODEC.carried, np.float32)
    ranks = []
    for step in range(20):
        x = noise if step == 0 else structured(120, 100, step)
        ranks.append(rank_of(encode_batch([EncodeItem(CODEC, x, carried=carried)])[0]))
    assert ranks[0] == 0
    assert ranks[-1] > 0


def test_any_numbers_may_be_carried() -> None:
    rng = np.random.default_rng(0)
    numel = sum(x.size for x in bucket_of(0))
    good = fresh()
    encode_step(0, good)
    for trial in range(60):
        carried = [one.copy() for one in good]
        for one in carried:
            at = rng.integers(one.size)
            bits = rng.integers(0, 2**32, one.size, dtype=np.uint32).view(np.float32)
            values = [np.nan, np.inf, -1, 0, 1e-38, 0.3, 7.5, 16, 17, 3e38, *bits]
            one[at] = rng.choice(np.array(values, np.float32))
        data = encode_step(1, carried)
        assert abs(8 * data.size / numel / 0.25 - 1) < 0.03, trial
        assert np.isfinite(error_of_step(1, data))


def test_only_what_a_codec_carries_is_taken() -> None:
    x = structured(20, 20)
    for spec, size in (("adaptive", CODEC.carried + 1), ("fp16", 1)):
        codec = gradcomp.get_codec(spec)
        with pytest.raises(ValueError, match=rf"carries {codec.carried} numbers .* not {size}"):
            encode_batch([EncodeItem(codec, x, carried=np.zeros(size, np.float32))])
