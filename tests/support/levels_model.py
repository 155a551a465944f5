"""A plain model of quantizers with a norm per bucket, written from docs/wire-format.md alone.

Encoding is modelled here; the independent decoder decodes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from decoder import linear_values, natural_values, read_wide_levels, stream_key, unzigzag

import gradcomp
from support.streams import WordArray, rounding_words

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

CHUNK = 65536


# Quantization -------------------------------------------------------------------------------------


def sum_squares(x: FloatArray) -> float:
    squares = np.zeros((-(-x.size // 16), 16))
    squares.reshape(-1)[: x.size] = x.astype(np.float64) ** 2
    sums = np.zeros(16)
    for row in squares:
        sums += row
    for width in (8, 4, 2, 1):
        sums = sums[:width] + sums[width:]
    return float(sums[0])


def bucket_norm(x: FloatArray, kind: str, first: int = 0) -> np.float32:
    """The norm of a bucket that begins at element ``first``."""
    if not np.isfinite(x).all():
        return np.float32(np.nan)
    cuts = np.arange(CHUNK - first % CHUNK, x.size, CHUNK)
    total = 0.0
    for piece in np.split(x, cuts):
        total = total + sum_squares(piece) if kind == "l2" else max(total, float(abs(piece).max()))
    norm = np.sqrt(total) if kind == "l2" else total
    norm = np.float32(min(norm, float.fromhex("0x1.fffffp127")))
    return norm if norm >= 2.0**-96 else np.float32(0)


def linear_levels(x: FloatArray, words: WordArray, norm: np.float32, levels: int) -> IntArray:
    if not norm > 0:
        return np.zeros(x.size, np.int64)
    if levels > 127:
        fixed = np.floor(abs(x).astype(np.float64) * (levels * 2.0**24 / np.float64(norm)))
    else:
        fixed = np.floor(abs(x) * np.float32(np.float32(levels * 2**24) / norm))
    rounded = (fixed.astype(np.int64) + (words >> np.uint64(8)).astype(np.int64)) >> 24
    return np.where(x < 0, -1, 1) * np.minimum(rounded, levels)


def natural_levels(x: FloatArray, words: WordArray, norm: np.float32, levels: int) -> IntArray:
    if not norm > 0:
        return np.zeros(x.size, np.int64)
    ratio = abs(x) * np.float32(np.float32(1) / norm)
    bits = ratio.view(np.uint32).astype(np.int64) + (words >> np.uint64(9)).astype(np.int64)
    above = np.minimum((bits >> 23) - 127 + levels, levels)
    small = np.minimum(ratio.astype(np.float64), 2.0 ** (1 - levels)) * 2.0 ** (levels + 23)
    below = (np.floor(small).astype(np.int64) + (words >> np.uint64(8)).astype(np.int64)) >> 24
    rounded = np.where(ratio < 2.0 ** (1 - levels), below, above)
    return np.where(x < 0, -1, 1) * rounded


def quantize(
    x: FloatArray, words: WordArray, levels: int, bucket: int, norm: str, partition: str = "linear"
) -> tuple[FloatArray, IntArray]:
    """The norms of all buckets, and the signed level of each element."""
    round_levels = linear_levels if partition == "linear" else natural_levels
    starts = range(0, x.size, bucket)
    norms = [bucket_norm(x[i : i + bucket], norm, i) for i in starts]
    parts = [
        round_levels(x[i : i + bucket], words[i : i + bucket], value, levels)
        for i, value in zip(starts, norms, strict=True)
    ]
    return np.array(norms, np.float32), np.concatenate([*parts, np.empty(0, np.int64)])


def dequantize(
    norms: FloatArray, signed: IntArray, levels: int, bucket: int, partition: str = "linear"
) -> FloatArray:
    values = linear_values if partition == "linear" else natural_values
    return values(np.repeat(norms, bucket)[: signed.size], signed, levels)


def decode_symbols(data: bytes, coder: str, bits: int, n: int) -> IntArray:
    return read_wide_levels(data, None if coder == "packed" else coder, bits, n)


def check_payload(
    stages: str,
    x: FloatArray,
    levels: int,
    bucket: int,
    norm: str,
    partition: str = "linear",
    **call: int,
) -> None:
    """Check that the payload and the decode of a codec with a norm per bucket equal this model's.

    Args:
        stages: the spec, with its coder of levels.
        x: the gradient.
        levels: the number of levels on each side of 0.
        bucket: the number of elements with one norm.
        norm: "max" or "l2".
        partition: "linear" or "natural".
        call: seed, step and tensor_id.
    """
    codec = gradcomp.get_codec(stages)
    words = rounding_words(stream_key(**call), x.size)
    norms, signed = quantize(x, words, levels, bucket, norm, partition)
    payload = codec.encode_payload(x, **call).tobytes()
    head = 4 * norms.size
    assert payload[:head] == norms.tobytes()
    coder = stages.partition("|")[2]
    symbols = decode_symbols(payload[head:], coder, (2 * levels).bit_length(), x.size)
    np.testing.assert_array_equal(unzigzag(symbols), signed)
    decoded = codec.decode(codec.encode(x, **call))
    expected = dequantize(norms, signed, levels, bucket, partition) + np.float32(0)
    assert decoded.tobytes() == expected.tobytes()
