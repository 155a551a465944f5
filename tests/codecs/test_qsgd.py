"""qsgd: its definition by the document and by GRACE, unbiasedness, and hostile payloads."""

from __future__ import annotations

import numpy as np
import pytest

import gradcomp
from support.codecs import check_refused, settings_of_the_core
from support.levels_model import check_payload, dequantize, linear_levels, quantize
from support.reference import reference
from support.streams import words_of_draws

CALL = {"seed": 2**63 + 5, "step": 2**33 + 1, "tensor_id": 7}


def gradients(n: int) -> np.ndarray:
    x = np.random.default_rng(n).laplace(scale=0.01, size=n).astype(np.float32)
    x[::37] = 0
    x[1::101] *= 1e-30
    return x


@pytest.mark.parametrize("coder", ["packed", "rans", "elias_delta"])
@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize(
    ("levels", "bucket", "n"),
    [
        *[(127, 512, 5000), (1, 16, 333), (7, 1001, 70_000), (3, 70_000, 140_001)],
        *[(64, 10**6, 4097), (128, 512, 5000), (1000, 1001, 70_000), (32_768, 70_000, 140_001)],
        (65_535, 16, 333),
    ],
)
def test_the_payload_is_what_the_document_says(
    levels: int, bucket: int, n: int, norm: str, coder: str
) -> None:
    spec = f"qsgd(levels={levels},bucket={bucket},norm={norm})|{coder}"
    check_payload(spec, gradients(n), levels, bucket, norm, **CALL)


@pytest.mark.parametrize("coder", ["packed", "rans", "elias_delta"])
@pytest.mark.parametrize(
    ("bucket", "levels"),
    [
        *((bucket, 9) for bucket in (16, 1001, 65_536, 65_537, 131_072, 150_000)),
        *[(16, 300), (65_537, 65_535)],
    ],
)
def test_neither_threads_nor_instructions_change_the_bytes(
    bucket: int, levels: int, coder: str
) -> None:
    codec = gradcomp.get_codec(f"qsgd(levels={levels},bucket={bucket},norm=l2)|{coder}")
    x = gradients(400_003)
    results = set()
    for _ in settings_of_the_core():
        frame = codec.encode(x)
        acc = np.ones_like(x)
        codec.decode_add(frame, acc, 0.3)
        results.add(frame.tobytes() + codec.decode(frame).tobytes() + acc.tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("case", ["grace-qsgd-01", "grace-qsgd-02"])
def test_the_definition_equals_grace(case: str) -> None:
    about, arrays = reference(case)
    levels = about["config"]["compressor"]["quantum_num"]
    residual = about["config"]["memory"]["type"] == "residual"
    checked = 0
    for tensor in about["tensors"]:
        inputs = arrays[("compensated." if residual else "grad.") + tensor]
        for index in np.ndindex(inputs.shape[:2]):
            x = inputs[index].ravel()
            words = words_of_draws(arrays[f"rnd.{tensor}"][index])
            norms, signed = quantize(x, words, levels, x.size, "l2")
            np.testing.assert_allclose(norms, arrays[f"wire_norm.{tensor}"][index], rtol=1e-5)
            np.testing.assert_array_equal(signed, arrays[f"wire_levels.{tensor}"][index])
            decoded = dequantize(norms, signed, levels, x.size)
            np.testing.assert_allclose(
                decoded, arrays[f"decoded.{tensor}"][index].ravel(), rtol=1e-5, atol=1e-6
            )
            checked += x.size
    assert checked > 1000


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("levels", [1, 5, 127, 1000, 65_535])
def test_the_mean_over_many_streams_is_the_input(levels: int, norm: str) -> None:
    codec = gradcomp.get_codec(f"qsgd(levels={levels},bucket=64,norm={norm})")
    x = gradients(640)
    rounds = 2000
    decoded = np.array([codec.decode(codec.encode(x, seed=i)) for i in range(rounds)], np.float64)
    error = decoded.mean(axis=0) - x
    unit = codec_unit(x, levels, norm)
    # One draw is at most half a unit off in standard deviation.
    assert (abs(error) <= 5 * unit / 2 / np.sqrt(rounds)).all()
    assert abs(error.mean()) <= 5 * unit.max() / 2 / np.sqrt(rounds * x.size)
    assert (abs(decoded - x) <= unit * 1.000001).all()


def codec_unit(x: np.ndarray, levels: int, norm: str) -> np.ndarray:
    buckets = x.astype(np.float64).reshape(-1, 64)
    norms = abs(buckets).max(axis=1) if norm == "max" else np.linalg.norm(buckets, axis=1)
    return np.repeat(norms / levels, 64)


def test_multiples_of_the_unit_are_kept_whatever_the_draws() -> None:
    x = (np.arange(-127, 128) * 2.0**-7).astype(np.float32)
    codec = gradcomp.get_codec("qsgd(levels=127,bucket=1000)")
    for seed in range(50):
        assert codec.decode(codec.encode(x, seed=seed)).tobytes() == (x + 0).tobytes()


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bucket", [64, 100_000])
def test_a_bucket_with_a_bad_element_is_nan_and_no_other(
    norm: str, bad: float, bucket: int
) -> None:
    codec = gradcomp.get_codec(f"qsgd(bucket={bucket},norm={norm})|rans")
    x = gradients(3 * bucket)
    x[bucket + 63] = bad
    nan = np.isnan(codec.decode(codec.encode(x)))
    assert nan[bucket : 2 * bucket].all()
    assert nan.sum() == bucket


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_extreme_buckets(norm: str) -> None:
    codec = gradcomp.get_codec(f"qsgd(bucket=16,norm={norm})")
    largest = np.finfo(np.float32).max
    huge = np.full(32, largest, np.float32)
    decoded = codec.decode(codec.encode(huge))
    assert np.isfinite(decoded).all()
    if norm == "max":
        np.testing.assert_allclose(decoded, huge, rtol=1e-6)
    for tiny in (np.float32(1e-45), np.float32(2.0**-97 * 0.2), np.float32(0), np.float32(-0.0)):
        decoded = codec.decode(codec.encode(np.full(32, tiny, np.float32)))
        assert decoded.tobytes() == bytes(128)
    small = np.full(16, 2.0**-95, np.float32)
    decoded = codec.decode(codec.encode(small))
    assert np.isfinite(decoded).all()
    assert abs(decoded - small).max() <= 4.1 * 2.0**-95 / 127


def test_all_levels_up_to_65535_are_kept() -> None:
    x = np.arange(-65_535, 65_536).astype(np.float32)
    codec = gradcomp.get_codec(f"qsgd(levels=65535,bucket={x.size})")
    for seed in range(3):
        decoded = codec.decode(codec.encode(x, seed=seed))
        assert decoded.tobytes() == (x + 0).tobytes()


def test_damaged_symbols_of_many_levels_are_refused() -> None:
    codec = gradcomp.get_codec("qsgd(levels=600,bucket=16)")  # 8 + 3 bits; the largest is 1200
    payload = codec.encode_payload(gradients(17))
    beyond = payload.copy()
    beyond[8:] = 0xFF
    beyond[-1] &= 0x07  # 51 bits of 56
    check_refused(codec, beyond, 17, "level symbol 2047")
    padded = payload.copy()
    padded[-1] |= 0x80
    check_refused(codec, padded, 17, "padding bits")
    for wrong in (payload[:-1], payload[:7], payload[:9], np.append(payload, payload[:1])):
        check_refused(codec, wrong, 17)


def test_a_level_beyond_the_last_is_refused() -> None:
    codec = gradcomp.get_codec("qsgd(levels=5,bucket=16)")
    payload = codec.encode_payload(gradients(16))
    payload[4:] = 0xFF  # symbols of 4 bits; the largest is 10
    check_refused(codec, payload, 16, "level symbol 15")


@pytest.mark.parametrize("norm", [-1.0, -0.0, np.inf, -np.nan, 3.4028235e38])
def test_a_norm_that_no_encoder_writes_is_refused(norm: float) -> None:
    codec = gradcomp.get_codec("qsgd(bucket=16)")
    payload = codec.encode_payload(gradients(16))
    payload[:4] = np.frombuffer(np.float32(norm).tobytes(), np.uint8)
    with pytest.raises(gradcomp.WireError, match="norm of bucket 0"):
        codec.decode_payload(payload, 16)


def test_rounding_beyond_the_last_level_stays_there() -> None:
    """An element of the norm's size may come out a little above the last level."""
    for norm in np.random.default_rng(5).uniform(0.1, 1, 200).astype(np.float32):
        top = linear_levels(np.full(4, norm), np.full(4, 2**32 - 1, np.uint64), norm, 127)
        assert (top == 127).all()
