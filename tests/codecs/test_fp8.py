"""fp8: its codes are torch's, its stochastic rounding is its definition; ends of the range."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from decoder import stream_key
from hypothesis import given

from gradcomp import get_codec
from support.codecs import error_of, roundtrip, settings_of_the_core
from support.gradients import LAWS, any_bits, normal
from support.streams import rounding_words

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]

FLOAT32_MAX = np.finfo(np.float32).max
LIMITS = {"e4m3": 448.0, "e5m2": 57344.0}
TORCH = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FRACTION_BITS = {"e4m3": 3, "e5m2": 2}
LEAST_SCALE = {"e4m3": 2.0**-117, "e5m2": 2.0**-110}

formats = pytest.mark.parametrize("form", LIMITS)


def scaled(x: FloatArray, form: str) -> tuple[np.float32, FloatArray]:
    """The scale of one bucket of finite elements, and the elements in its units."""
    limit = np.float32(LIMITS[form])
    with np.errstate(over="ignore"):
        scale = np.abs(x).max() / limit
        if np.isinf(scale * limit):
            scale = np.nextafter(scale, np.float32(0))
    if scale < LEAST_SCALE[form]:
        return np.float32(0), np.zeros_like(x)
    return scale, np.clip(x * (np.float32(1) / scale), -limit, limit)


def torch_codes(values: FloatArray, form: str) -> ByteArray:
    return torch.from_numpy(values).to(TORCH[form]).view(torch.uint8).numpy()


def torch_values(codes: ByteArray, form: str) -> FloatArray:
    return torch.from_numpy(codes).view(TORCH[form]).to(torch.float32).numpy()


def payload_of(spec: str, x: FloatArray) -> tuple[np.float32, ByteArray]:
    """The scale and the codes of one bucket."""
    payload = get_codec(spec).encode_payload(x, seed=8)
    return payload[:4].view(np.float32)[0], payload[4:]


@formats
@LAWS
@given(x=any_bits())
def test_a_bucket_is_its_scale_and_torchs_codes(form: str, x: FloatArray) -> None:
    x = x[np.isfinite(x)][:65536]
    if x.size == 0:
        return
    scale, codes = payload_of(f"fp8(format={form},bucket=65536)", x)
    expected, values = scaled(x, form)
    assert scale == expected
    np.testing.assert_array_equal(codes, torch_codes(values, form))


@formats
def test_ties_and_codes_at_every_level_are_torchs(form: str) -> None:
    """All finite codes, the middles between them, and the floats next to those."""
    codes = np.arange(256, dtype=np.uint8)
    values = torch_values(codes, form)
    values = np.sort(values[np.isfinite(values)])
    middles = (values[:-1] + values[1:]) / np.float32(2)
    beside = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    x = np.concatenate([values, middles, *beside])
    for setting in settings_of_the_core(threads=(1,)):
        scale, found = payload_of(f"fp8(format={form},bucket=65536)", x)
        assert scale == 1
        np.testing.assert_array_equal(found, torch_codes(x, form), err_msg=setting)


@formats
def test_every_code_decodes_to_torchs_value(form: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    codes = codes[np.isfinite(torch_values(codes, form))]
    scale = np.float32(0.37)
    payload = np.concatenate([np.array([scale]).view(np.uint8), codes])
    for setting in settings_of_the_core(threads=(1,)):
        decoded = get_codec(f"fp8(format={form})").decode_payload(payload, codes.size)
        expected = scale * torch_values(codes, form)
        assert decoded.tobytes() == expected.tobytes(), setting


@formats
def test_flushing_denormals_changes_nothing(form: str) -> None:
    least = np.float32(LEAST_SCALE[form])
    x = np.concatenate([normal(511), [1e-6]]).astype(np.float32)
    x *= 1.001 * least * np.float32(LIMITS[form]) / np.abs(x).max()
    codec = get_codec(f"fp8(format={form})")
    expected = codec.encode_payload(x)
    decoded = codec.decode_payload(expected, x.size)
    assert np.count_nonzero(decoded) > 400
    torch.set_flush_denormal(True)
    try:
        flushed = codec.encode_payload(x), codec.decode_payload(expected, x.size)
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(flushed[0], expected)
    np.testing.assert_array_equal(flushed[1], decoded)


@formats
@pytest.mark.parametrize("spread", [1.0, 6.0])
def test_stochastic_rounding_equals_its_definition(form: str, spread: float) -> None:
    x = np.exp(spread * normal(5121)).astype(np.float32) * np.sign(normal(5121, 1))
    x = x.astype(np.float32)
    scale, codes = payload_of(f"fp8(format={form},bucket=65536,rounding=stochastic)", x)
    expected, values = scaled(x, form)
    assert scale == expected
    words = rounding_words(stream_key(8, 0, 0), x.size).astype(np.int64)
    t = FRACTION_BITS[form]
    bias = {"e4m3": 7, "e5m2": 15}[form]
    magnitudes = np.abs(values)
    carried = magnitudes.view(np.uint32).astype(np.int64) + (words >> (9 + t)) >> (23 - t)
    exact = magnitudes.astype(np.float64) * 2.0 ** (23 + bias + t)
    low = np.trunc(np.minimum(exact, 2.0**40)).astype(np.int64) + (words >> 8) >> 24
    wanted = np.where(magnitudes >= 2.0 ** (1 - bias), carried - ((127 - bias) << t), low)
    assert (magnitudes < 2.0 ** (1 - bias)).any() == (spread > 1)
    np.testing.assert_array_equal(codes & 0x7F, wanted)
    np.testing.assert_array_equal(codes >> 7, np.signbit(x))


@formats
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_ends_of_the_float32_range(form: str, rounding: str) -> None:
    spec = f"fp8(format={form},rounding={rounding})"
    huge = np.array([FLOAT32_MAX, -FLOAT32_MAX], np.float32)
    np.testing.assert_allclose(roundtrip(spec, huge), huge, rtol=1e-6)
    tiny = np.array([1e-45, -1e-40, 1e-33], np.float32)
    assert roundtrip(spec, tiny).tolist() == [0, 0, 0]
    small = np.array([1e-27, -1e-27], np.float32)
    np.testing.assert_allclose(roundtrip(spec, small), small, rtol=1e-6)


def test_the_error_is_relative_to_each_element() -> None:
    """Unlike int8's: elements far below the largest keep their precision."""
    x = (normal(4096) * np.where(np.arange(4096) % 512 == 0, 300, 1)).astype(np.float32)
    assert error_of("fp8", x) < 1e-3
    small = np.abs(x) < 10
    for spec, largest in (("fp8", 1e-3), ("fp8(format=e5m2)", 4e-3)):
        error = roundtrip(spec, x)[small] - x[small]
        assert np.sum(error**2) < largest * np.sum(x[small] ** 2)
    error = roundtrip("int8", x)[small] - x[small]
    assert np.sum(error**2) > 0.1 * np.sum(x[small] ** 2)
