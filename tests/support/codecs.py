"""A codec's round trip and error, settings of the core, and checks that several codecs share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from gradcomp import Codec, WireError, _core, get_codec

FloatArray = npt.NDArray[np.float32]

NAN_BITS = 0x7FC00000
HOSTILE_SCALES = (0x7FC00001, 0xFF800000, 0x7F7FFFFF, 0xF1800001)
"""Bits of a NaN, -Inf, the largest float32, and a negative number just above 2^100 in magnitude."""


def roundtrip(spec: str, x: FloatArray, **call: int) -> FloatArray:
    """The decoded frame of x; ``call`` is any of seed, step and tensor_id."""
    codec = get_codec(spec)
    return codec.decode(codec.encode(x, **call))


def vnmse(x: npt.NDArray[np.floating], y: npt.NDArray[np.floating]) -> float:
    """The sum of squared errors of y over the sum of squares of x."""
    exact = x.reshape(-1).astype(np.float64)
    return float(np.sum((exact - y.reshape(-1)) ** 2) / np.sum(exact**2))


def error_of(spec: str, x: FloatArray) -> float:
    """The `vnmse` of a codec's round trip."""
    return vnmse(x, roundtrip(spec, x))


def same_bits(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> bool:
    """Whether two arrays are of one type and equal bit for bit."""
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def magnitudes(x: FloatArray) -> npt.NDArray[np.int64]:
    """The bits without the sign, which order finite numbers, then Inf, then NaN."""
    return (x.view(np.uint32) & 0x7FFFFFFF).astype(np.int64)


def only(x: FloatArray, kept: Sequence[int] | npt.NDArray[np.integer]) -> FloatArray:
    """x at the kept indices, zero elsewhere."""
    dense = np.zeros_like(x)
    dense[kept] = x[kept]
    return dense


def settings_of_the_core(threads: Sequence[int] = (1, 2, 3)) -> Iterator[str]:
    """Set every SIMD level with every number of threads, one after the other.

    A fixture of all tests puts the former values back.
    """
    for level in _core.simd_levels():
        for count in threads:
            _core.set_simd_level(level)
            _core.set_thread_count(count)
            yield f"{level}, {count} threads"


def check_refused(
    codec: Codec, payload: npt.NDArray[np.generic], n: int, match: str | None = None
) -> None:
    """Check that a payload of n elements is refused, and leaves the accumulator unchanged."""
    acc = np.ones(n, np.float32)
    with pytest.raises(WireError, match=match):
        codec.decode_payload_add(payload, acc)
    assert (acc == 1).all()


def check_hostile_scales(spec: str, n: int) -> None:
    """Check that scales no encoder writes make all n elements of a rotated vector NaN."""
    codec = get_codec(spec)
    payload = codec.encode_payload(np.ones(n, np.float32))
    for bits in HOSTILE_SCALES:
        hostile = payload.copy()
        hostile[:4] = np.array([bits], np.uint32).view(np.uint8)
        decoded = codec.decode_payload(hostile, n)
        assert (decoded.view(np.uint32) == NAN_BITS).all()


def check_wrong_sizes(spec: str, n: int, kept: Sequence[int]) -> None:
    """Check that payloads of n elements cut to ``kept`` bytes, or a byte too long, are refused."""
    codec = get_codec(spec)
    payload = codec.encode_payload(np.ones(n, np.float32))
    for wrong in (*(payload[:size] for size in kept), np.append(payload, payload[:1])):
        check_refused(codec, wrong, n)
