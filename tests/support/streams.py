"""Random streams of the wire format, by the independent decoder's Philox."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from decoder import draws, philox4x32, stream_key

WordArray = npt.NDArray[np.uint64]


def rounding_words(stream: int, n: int) -> WordArray:
    """The rounding words of elements 0 to n - 1."""
    blocks = np.zeros((4 * -(-n // 32), 4), np.uint64)
    blocks[:, 0] = np.arange(len(blocks))
    blocks[:, 2] = 2
    words = philox4x32(blocks, (stream & 0xFFFFFFFF, stream >> 32)).astype(np.uint64)
    half = np.uint64(16)
    swapped = words << half & np.uint64(0xFFFFFFFF) | words >> half
    pairs = np.stack([words.reshape(-1, 16), swapped.reshape(-1, 16)], axis=1)
    return pairs.reshape(-1)[:n]


def words_of_draws(u: npt.NDArray[Any]) -> WordArray:
    """Words that round up exactly where the draw u in [0, 1) is below the fraction, to 2^-23."""
    return np.minimum((1 - u.astype(np.float64)) * 2**32, 2**32 - 1).astype(np.uint64)


def first_draw(seed: int, step: int = 0, tensor_id: int = 0) -> int:
    """The first 64-bit draw of the stream of a call."""
    return draws(stream_key(seed, step, tensor_id), 1)[0]


def seed_with_start(start: int, stride: int, step: int = 0, tensor_id: int = 0) -> int:
    """A seed with ``start`` as its first draw below ``stride``: where the sample of sampled_topk
    begins."""
    for seed in range(100_000):
        if first_draw(seed, step, tensor_id) * stride >> 64 == start:
            return seed
    raise AssertionError(f"no seed found for start {start} of stride {stride}")
