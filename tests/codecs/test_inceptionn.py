"""inceptionn: its error bound, the elements that it keeps unchanged, and its sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradcomp
from gradcomp import WireError
from support.codecs import roundtrip, same_bits
from support.gradients import LAWS, any_bits, finite, sample

BOUNDS = [2.0**-16, 2.0**-16 * 1.5, 1e-4, 2.0**-10, 0.003, 2.0**-8, 0.3, 0.5]


def inceptionn(x: np.ndarray, bound: float) -> np.ndarray:
    return roundtrip(f"inceptionn(error_bound={bound!r})", x)


def tags_of(x: np.ndarray, bound: float) -> np.ndarray:
    """The tags by the definition, in float64."""
    unit = 2.0 ** (math.floor(math.log2(bound)) + 1)
    magnitude = np.where(np.isnan(x), np.inf, np.abs(x.astype(np.float64)))
    small, large = np.rint(magnitude / unit), np.rint(magnitude * 2.0**15)
    return np.select([large >= 2**15, small == 0, small <= 127], [3, 0, 1], 2)


@pytest.mark.parametrize("bound", BOUNDS)
@LAWS
@given(x=finite(4.0), scale=st.sampled_from([1.0, 1e-2, 1e-4]))
def test_no_error_exceeds_the_bound(bound: float, x: np.ndarray, scale: float) -> None:
    x = x * np.float32(scale)
    decoded = inceptionn(x, bound)
    error = np.abs(x.astype(np.float64) - decoded)
    assert (error <= bound).all()
    assert (error[np.abs(x) >= 1] == 0).all()
    assert not np.signbit(decoded[decoded == 0]).any()


@pytest.mark.parametrize("bound", [2.0**-16, 2.0**-10, 0.5])
def test_the_bound_holds_and_is_reached_at_every_kind_of_border(bound: float) -> None:
    unit = 2 * bound
    edges = np.array([bound, unit, 127 * unit, 127.5 * unit, 128 * unit, 1 - 2**-16, 1, 2**-15])
    near = np.float32(edges)
    x = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(9))])
    x = np.concatenate([x, -x])
    decoded = inceptionn(x, bound)
    assert (np.abs(x.astype(np.float64) - decoded) <= bound).all()
    if bound < 0.1:
        assert inceptionn(np.array([2.5 * unit], np.float32), bound)[0] == np.float32(2 * unit)


@LAWS
@given(x=any_bits())
def test_large_and_nonfinite_elements_are_kept_bit_for_bit(x: np.ndarray) -> None:
    decoded = inceptionn(x, 0.5)
    kept = ~(np.abs(x) < 1)
    assert same_bits(decoded[kept], x[kept])
    assert (np.abs(x[~kept] - decoded[~kept]) <= 0.5).all()


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1023, 1024, 1025, 70_000])
def test_every_element_takes_the_bits_of_its_tag(bound: float, n: int) -> None:
    x = sample("nonfinite", n) * np.exp(-5 * np.random.default_rng(n).random(n)).astype(np.float32)
    codec = gradcomp.get_codec(f"inceptionn(error_bound={bound!r})")
    tags = tags_of(x, bound)
    data = int(np.array([0, 1, 2, 4])[tags].sum())
    payload = codec.encode_payload(x)
    assert payload.size == 2 * ((n + 7) // 8) + data
    low = np.unpackbits(payload[: (min(n, 1024) + 7) // 8], bitorder="little")
    assert low[: min(n, 1024)].tolist() == (tags[:1024] % 2).tolist()


def test_tags_beyond_the_last_element_are_refused() -> None:
    codec = gradcomp.get_codec("inceptionn")
    payload = codec.encode_payload(np.zeros(3, np.float32))
    assert payload.tolist() == [0, 0]
    assert codec.decode_payload(payload, 3).tolist() == [0, 0, 0]
    for damaged, message in (
        ([8, 0, 1], "beyond the last"),
        ([0, 128, 1, 1], "beyond the last"),
        ([1, 0], "needs 3 bytes, and 2 are left"),
        ([0, 0, 0], "1 bytes follow"),
        ([0], "the tags"),
    ):
        with pytest.raises(WireError, match=message):
            codec.decode_payload(np.array(damaged, np.uint8), 3)
