"""fp16 and bf16 against numpy's and torch's conversions, exhaustively where that is possible."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given

import gradcomp
from gradcomp import _core
from support.codecs import same_bits, settings_of_the_core
from support.gradients import LAWS, any_bits

ALL_HALVES = np.arange(2**16, dtype=np.uint16)
SPECS = ["fp16(overflow=inf)", "fp16(overflow=saturate)", "bf16"]


def narrowed(spec: str, x: np.ndarray) -> np.ndarray:
    """The 16-bit patterns that a codec makes of float32 numbers."""
    return gradcomp.get_codec(spec).encode_payload(x).view(np.uint16)


def widened(spec: str, halves: np.ndarray) -> np.ndarray:
    return gradcomp.get_codec(spec).decode_payload(halves, halves.size)


def numpy_fp16(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).view(np.uint16)


def torch_bf16(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).to(torch.bfloat16).view(torch.uint16).numpy()


def torch_fp16(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).to(torch.float16).view(torch.uint16).numpy()


def boundaries(to_float32: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Every point where rounding to a 16-bit format changes its result, and both neighbours.

    The points are the midpoints of neighbouring magnitudes, the last of them where Inf begins.
    """
    magnitudes = to_float32(np.arange(0x8000, dtype=np.uint16))
    values = magnitudes[np.isfinite(magnitudes)].astype(np.float64)
    middles = np.append((values[:-1] + values[1:]) / 2, values[-1] + (values[-1] - values[-2]) / 2)
    points = middles.astype(np.float32)
    assert (points.astype(np.float64) == middles).all(), "midpoints are float32 numbers"
    bits = points.view(np.uint32)
    near = np.concatenate([values.astype(np.float32).view(np.uint32), bits - 1, bits, bits + 1])
    return np.concatenate([near, near | 0x80000000]).view(np.float32)


def fp16_to_float32(halves: np.ndarray) -> np.ndarray:
    return halves.view(np.float16).astype(np.float32)


def bf16_to_float32(halves: np.ndarray) -> np.ndarray:
    return torch.from_numpy(halves.copy()).view(torch.bfloat16).to(torch.float32).numpy()


FP16_BOUNDARIES = boundaries(fp16_to_float32)
BF16_BOUNDARIES = boundaries(bf16_to_float32)


@pytest.fixture(params=_core.simd_levels())
def level(request: pytest.FixtureRequest) -> str:
    _core.set_simd_level(request.param)
    level: str = request.param
    return level


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("spec", SPECS[:2])
def test_every_binary16_decodes_as_in_numpy(spec: str) -> None:
    decoded = widened(spec, ALL_HALVES)
    expected = fp16_to_float32(ALL_HALVES)
    nan = np.isnan(expected)
    assert nan.sum() == 2 * 1023
    assert same_bits(decoded[~nan], expected[~nan])
    quiet = (expected[nan].view(np.uint32)) | 0x00400000
    assert (decoded[nan].view(np.uint32) == quiet).all()


@pytest.mark.usefixtures("level")
def test_every_bfloat16_decodes_as_in_torch() -> None:
    decoded = widened("bf16", ALL_HALVES)
    assert (decoded.view(np.uint32) == ALL_HALVES.astype(np.uint32) << 16).all()
    np.testing.assert_array_equal(decoded, bf16_to_float32(ALL_HALVES))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("spec", SPECS)
def test_what_is_a_half_already_stays(spec: str) -> None:
    wide = widened(spec, ALL_HALVES)
    # Encoding makes every NaN quiet; the quiet bit is the first of the fraction.
    quiet_bit = 0x0040 if spec == "bf16" else 0x0200
    quiet = np.where(np.isnan(wide), ALL_HALVES | quiet_bit, ALL_HALVES)
    assert (narrowed(spec, wide) == quiet).all()


@pytest.mark.usefixtures("level")
def test_every_boundary_of_binary16_rounds_as_in_numpy_and_torch() -> None:
    halves = narrowed("fp16(overflow=inf)", FP16_BOUNDARIES)
    assert (halves == numpy_fp16(FP16_BOUNDARIES)).all()
    assert (halves == torch_fp16(FP16_BOUNDARIES)).all()
    assert set(halves.tolist()) == set(range(0x7C01)) | set(range(0x8000, 0xFC01))


@pytest.mark.usefixtures("level")
def test_every_boundary_of_bfloat16_rounds_as_in_torch() -> None:
    halves = narrowed("bf16", BF16_BOUNDARIES)
    assert (halves == torch_bf16(BF16_BOUNDARIES)).all()
    assert set(halves.tolist()) == set(range(0x7F81)) | set(range(0x8000, 0xFF81))


@pytest.mark.usefixtures("level")
def test_saturation_replaces_only_what_would_become_inf() -> None:
    x = np.concatenate(
        [FP16_BOUNDARIES, np.array([65519.996, 65520, 7e4, 3.4e38, np.inf], np.float32)]
    )
    x = np.concatenate([x, -x])
    to_inf = narrowed("fp16(overflow=inf)", x)
    saturated = narrowed("fp16(overflow=saturate)", x)
    overflow = ((to_inf & 0x7FFF) == 0x7C00) & np.isfinite(x)
    assert (overflow == ((np.abs(x) >= 65520) & np.isfinite(x))).all()
    assert overflow.sum() >= 8
    assert (saturated[overflow] & 0x7FFF == 0x7BFF).all()
    assert (saturated[overflow] >> 15 == to_inf[overflow] >> 15).all()
    assert (saturated[~overflow] == to_inf[~overflow]).all()
    assert (saturated[np.isinf(x)] & 0x7FFF == 0x7C00).all()


def test_bfloat16_overflows_from_the_last_half_step_on() -> None:
    below, first = np.array([0x7F7F7FFF, 0x7F7F8000], np.uint32).view(np.float32)
    assert np.isfinite(gradcomp.get_codec("bf16").decode_payload(narrowed("bf16", below), 1))
    assert narrowed("bf16", np.array([first, -first])).tolist() == [0x7F80, 0xFF80]


@LAWS
@given(x=any_bits())
def test_any_bits_convert_by_the_rules_of_the_document(x: np.ndarray) -> None:
    bits = x.view(np.uint32)
    nan = np.isnan(x)
    sign = bits >> 16 & 0x8000
    fp16 = np.where(nan, sign | 0x7E00 | (bits >> 13 & 0x3FF), numpy_fp16(x))
    bf16 = np.where(nan, bits >> 16 | 0x40, torch_bf16(x))
    for setting in settings_of_the_core():
        assert (narrowed("fp16(overflow=inf)", x) == fp16).all(), setting
        assert (narrowed("bf16", x) == bf16).all(), setting
