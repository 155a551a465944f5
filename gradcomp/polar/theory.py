"""The least distortion of fair coin flips at a rate, for any compressor."""

from __future__ import annotations

import math

__all__ = ["distortion_rate", "rate_distortion"]


def rate_distortion(distortion: float) -> float:
    """Bits per bit that any compressor of fair coin flips needs: 1 - h(D) for D in [0, 0.5].

    D is the Hamming distortion, the fraction of bits that come back wrong, and h the binary
    entropy (Cover, Thomas, "Elements of Information Theory", theorem 10.3.1).
    """
    if not 0 <= distortion <= 0.5:
        raise ValueError(
            f"distortion is {distortion}; it must be from 0 to 0.5, as wrong bits can be flipped"
        )
    return 1 + sum(p * math.log2(p) for p in (distortion, 1 - distortion) if p > 0)


def distortion_rate(rate: float) -> float:
    """The least Hamming distortion at ``rate`` in [0, 1]: the inverse of rate_distortion."""
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}; it must be from 0 to 1, in bits per source bit")
    if rate in (0, 1):
        return 0.5 * (1 - rate)
    low, high = 0.0, 0.5
    while low < (middle := (low + high) / 2) < high:
        if rate_distortion(middle) > rate:
            low = middle
        else:
            high = middle
    return high
