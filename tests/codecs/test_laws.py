"""Laws of every registered codec."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradcomp
from gradcomp.codec.frame import inspect, split_frames
from support.codecs import same_bits, settings_of_the_core
from support.gradients import DISTRIBUTIONS, LAWS, any_bits, finite, sample
from support.specs import CODECS, SPECS

CALL = {"seed": 3, "step": 1, "tensor_id": 4}
SMALL_SIZES = [0, 1, 7, 63, 64, 65, 4095, 4096, 4097]
LARGE_SIZES = [65535, 65536, 65537, 200_000]

LINEAR = [
    spec
    for spec in SPECS
    if "summable" in gradcomp.get_codec(spec).caps
    and "nonlinear" not in gradcomp.get_codec(spec).caps
]
SEEDED = [spec for spec in SPECS if "seeded" in gradcomp.get_codec(spec).caps]
UNSEEDED = [  # and without rounding noise of their own
    spec for spec in SPECS if not {"seeded", "private_noise"} & gradcomp.get_codec(spec).caps
]
FINITE = [spec for spec in SPECS if "finite" in gradcomp.get_codec(spec).caps]

FLOAT32_MAX = float(np.finfo(np.float32).max)

uint64s = st.integers(0, 2**64 - 1)


def accumulator(n: int) -> np.ndarray:
    """Finite numbers, none of them -0: a sparse decode_add leaves -0 alone, adding +0 does not."""
    return np.random.default_rng(n).normal(size=n).astype(np.float32)


def added(acc: np.ndarray, weight: float, decoded: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return acc + np.float32(weight) * decoded


def test_every_codec_has_its_specs_here() -> None:
    assert {gradcomp.get_codec(spec).name for spec in SPECS} == set(CODECS)
    assert gradcomp.list_codecs() == CODECS
    assert LINEAR
    assert SEEDED
    assert UNSEEDED
    assert FINITE


@pytest.mark.parametrize("spec", SPECS)
@LAWS
@given(x=any_bits(), seed=uint64s, step=uint64s, tensor_id=uint64s)
def test_a_frame_describes_what_was_encoded_and_holds_its_payload(
    spec: str, x: np.ndarray, seed: int, step: int, tensor_id: int
) -> None:
    codec = gradcomp.get_codec(spec)
    call = {"seed": seed, "step": step, "tensor_id": tensor_id}
    frame = codec.encode(x, **call)
    assert frame.dtype == np.uint8
    assert frame.size <= codec.max_encoded_size(x.size)
    assert same_bits(frame, codec.encode(x.copy(), **call))
    info = inspect(frame)
    assert (info.codec_name, info.numel, info.crc_ok) == (codec.name, x.size, True)
    assert info.total_bytes == frame.size
    assert info.payload_bytes <= codec.max_payload_size(x.size)
    assert [part.tobytes() for part in split_frames(frame, 1)] == [frame.tobytes()]
    decoded = codec.decode(frame)
    assert decoded.shape == (x.size,)
    assert decoded.dtype == np.float32
    assert same_bits(codec.decode(bytes(frame), numel=x.size), decoded)
    out = np.full((x.size, 1), 7, np.float32)
    assert codec.decode(frame, out) is out
    assert same_bits(out, decoded)

    # A payload is the inside of a frame.
    payload = codec.encode_payload(x, **call)
    assert payload.dtype == codec.payload_dtype
    assert payload.nbytes <= codec.max_payload_size(x.size)
    begin = frame.size - 4 - payload.nbytes
    assert frame[begin:-4].tobytes() == payload.tobytes()
    assert same_bits(codec.decode_payload(payload, x.size, **call), decoded)
    acc = accumulator(x.size)
    expected = acc.copy()
    codec.decode_add(frame, expected, 0.3)
    codec.decode_payload_add(payload, acc, 0.3, **call)
    assert same_bits(acc, expected)


@pytest.mark.parametrize("spec", SPECS)
@LAWS
@given(x=any_bits(), weight=st.floats(-1e3, 1e3, width=32))
def test_decode_add_is_a_product_and_a_sum(spec: str, x: np.ndarray, weight: float) -> None:
    codec = gradcomp.get_codec(spec)
    frame = codec.encode(x, **CALL)
    acc = accumulator(x.size)
    expected = added(acc, weight, codec.decode(frame))
    codec.decode_add(frame, acc, weight)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(acc), nan)
    assert same_bits(acc[~nan], expected[~nan])


@pytest.mark.parametrize("spec", SPECS)
def test_neither_threads_nor_instructions_change_a_small_result(spec: str) -> None:
    check_determinism(spec, SMALL_SIZES, DISTRIBUTIONS)


@pytest.mark.parametrize("spec", SPECS)
def test_neither_threads_nor_instructions_change_a_large_result(spec: str) -> None:
    check_determinism(spec, LARGE_SIZES, ["laplace", "constant", "nonfinite"])


@pytest.mark.parametrize("name", CODECS)
def test_neither_threads_nor_instructions_change_a_million_elements(name: str) -> None:
    spec = next(spec for spec in SPECS if gradcomp.get_codec(spec).name == name)
    check_determinism(spec, [1_000_000], ["gaussian"])


def check_determinism(spec: str, sizes: list[int], kinds: object) -> None:
    codec = gradcomp.get_codec(spec)
    for n in sizes:
        for kind in kinds:
            x = sample(kind, n)
            acc = accumulator(n)
            results = {}
            for setting in settings_of_the_core():
                frame = codec.encode(x, **CALL)
                total = acc.copy()
                codec.decode_add(frame, total, 0.3)
                results[setting] = (
                    frame.tobytes(),
                    codec.decode(frame).tobytes(),
                    total.tobytes(),
                )
            reference, *others = results
            assert x.size == n
            for setting in others:
                assert results[setting] == results[reference], (n, kind, setting)
            expected = added(acc, 0.3, codec.decode(results[reference][0]))
            np.testing.assert_array_equal(np.frombuffer(results[reference][2], "<f4"), expected)


@pytest.mark.parametrize("spec", UNSEEDED)
@LAWS
@given(x=any_bits(100), seed=uint64s, step=uint64s, tensor_id=uint64s)
def test_an_unseeded_codec_ignores_the_seed(
    spec: str, x: np.ndarray, seed: int, step: int, tensor_id: int
) -> None:
    codec = gradcomp.get_codec(spec)
    assert inspect(codec.encode(x)).stream is None
    other = codec.encode(x, seed=seed, step=step, tensor_id=tensor_id)
    assert same_bits(codec.encode(x), other)


@pytest.mark.parametrize("spec", SEEDED)
def test_a_seeded_codec_takes_note_of_seed_step_and_tensor(spec: str) -> None:
    codec = gradcomp.get_codec(spec)
    x = sample("gaussian", 100)
    calls = [
        {"seed": seed, "step": step, "tensor_id": tensor_id}
        for seed in (0, 1, 2**63)
        for step in (0, 1, 2**40)
        for tensor_id in (0, 1, 2**64 - 1)
    ]
    streams = {inspect(codec.encode(x, **call)).stream for call in calls}
    assert len(streams) == len(calls)
    assert None not in streams


@pytest.mark.parametrize("spec", FINITE)
@LAWS
@given(x=finite(FLOAT32_MAX))
def test_finite_stays_finite_where_the_codec_says_so(spec: str, x: np.ndarray) -> None:
    codec = gradcomp.get_codec(spec)
    assert np.isfinite(codec.decode(codec.encode(x, **CALL))).all()


@pytest.mark.parametrize("spec", FINITE)
def test_the_largest_floats_stay_finite(spec: str) -> None:
    codec = gradcomp.get_codec(spec)
    for n in (1, 2, 63, 64, 70, 128, 300, 5000):
        rng = np.random.default_rng(n)
        x = np.full(n, FLOAT32_MAX, np.float32)
        mixed = np.where(
            rng.random(n) < 0.95, x, rng.choice([-1, 0, 0.9], n).astype(np.float32) * x
        )
        for one in (x, -x, mixed):
            assert np.isfinite(codec.decode(codec.encode(one, **CALL))).all(), n


@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize("spec", LINEAR)
def test_payloads_may_be_summed_before_decoding(spec: str, ranks: int) -> None:
    codec = gradcomp.get_codec(spec)
    for n in (0, 1, 65, 5000):
        rng = np.random.default_rng(n)
        grads = [rng.normal(size=n).astype(np.float32) for _ in range(ranks)]
        payloads = [codec.encode_payload(grad, **CALL) for grad in grads]
        assert codec.payload_dtype in (np.float16, np.float32)
        total = payloads[0].copy()
        for payload in payloads[1:]:
            total += payload
        decodes = np.array([codec.decode_payload(one, n, **CALL) for one in payloads], np.float64)
        unit = np.finfo(codec.payload_dtype).eps / 2
        # Each of the additions rounds once, to half a unit of a partial sum.
        tolerance = (ranks - 1) * unit * np.abs(decodes).sum(axis=0)
        error = np.abs(codec.decode_payload(total, n, **CALL) - decodes.sum(axis=0))
        assert (error <= tolerance).all()
        assert n < 65 or np.abs(decodes).sum() > 0
