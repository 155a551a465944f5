"""A plain model of quantizers with a norm per bucket, written from docs/wire-format.md alone.

Encoding is modelled here; decoding is that of the independent decoder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder import linear_values, natural_values, read_levels

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint64]

REFERENCE = Path(__file__).resolve().parents[1] / "golden" / "reference"
CHUNK = 65536
LOW = np.uint64(0xFFFFFFFF)


def reference(case: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The description and the arrays of a case of the reference implementations."""
    with np.load(REFERENCE / case / "arrays.npz") as arrays:
        return json.loads((REFERENCE / case / "case.json").read_text()), dict(arrays)


# Random streams -----------------------------------------------------------------------------------


def philox(counter: list[WordArray], key: int) -> list[WordArray]:
    c0, c1, c2, c3 = counter
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1 = (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & LOW
        c2, c3 = (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def stream_key(seed: int, step: int, tensor_id: int) -> int:
    counter = [step & 0xFFFFFFFF, step >> 32, tensor_id & 0xFFFFFFFF, tensor_id >> 32]
    block = philox([np.array(word, np.uint64) for word in counter], seed)
    return int(block[0]) | int(block[1]) << 32


def rounding_words(stream: int, n: int) -> WordArray:
    """The rounding words of elements 0 to n - 1."""
    block = np.arange(4 * -(-n // 32), dtype=np.uint64)
    zero = np.zeros_like(block)
    words = np.stack(philox([block, zero, zero + np.uint64(2), zero], stream), axis=1)
    half = np.uint64(16)
    swapped = words << half & LOW | words >> half
    pairs = np.stack([words.reshape(-1, 16), swapped.reshape(-1, 16)], axis=1)
    return pairs.reshape(-1)[:n]


def words_of_draws(u: npt.NDArray[Any]) -> WordArray:
    """Words that round up exactly where the draw u in [0, 1) is below the fraction, to 2^-23."""
    return np.minimum((1 - u.astype(np.float64)) * 2**32, 2**32 - 1).astype(np.uint64)


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
    fixed = np.floor(abs(x) * np.float32(np.float32(levels * 2**24) / norm)).astype(np.int64)
    rounded = (fixed + (words >> np.uint64(8)).astype(np.int64)) >> 24
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


def unzigzag(symbols: IntArray) -> IntArray:
    return np.where(symbols % 2 == 1, -(symbols + 1) // 2, symbols // 2)


def decode_symbols(data: bytes, coder: str, bits: int, n: int) -> IntArray:
    return read_levels(data, None if coder == "packed" else coder, bits, n)
