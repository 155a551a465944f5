"""Bits of coded top-k indices as multiples of log2 C(n, k)."""

from __future__ import annotations

import math

import numpy as np

import gradcomp

NUMEL = 1_000_000
RATIOS = (0.001, 0.01, 0.1, 0.5)
CODERS = ("raw32", "bitmask", "elias_fano", "rice", "auto")
FIXED_BYTES = 24 + 4 + 8  # frame header, CRC, payload header


def log2_binomial(n: int, k: int) -> float:
    """log2 of the number of ways to choose k of n."""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def main() -> None:
    """Print the table."""
    x = np.random.default_rng(0).standard_normal(NUMEL, np.float32)
    print("ratio   " + "".join(f"{coder:>12}" for coder in CODERS))
    for ratio in RATIOS:
        k = round(ratio * NUMEL)
        multiples = []
        for coder in CODERS:
            frame = gradcomp.get_codec(f"topk(ratio={ratio})|{coder}").encode(x)
            bits = 8 * (frame.size - FIXED_BYTES - 4 * k)
            multiples.append(bits / log2_binomial(NUMEL, k))
        print(f"{ratio:<8}" + "".join(f"{multiple:12.3f}" for multiple in multiples))


if __name__ == "__main__":
    main()
