"""Gradients that tell wrong kernels from right ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

FAMILIES = (
    "normal",
    "heavy tails",
    "few values",
    "constant",
    "zeros of both signs",
    "nearly all zero",
    "not finite",
    "denormals",
    "any bits",
    "half of it large",
    "a tenth of it large",
    "powers of two",
    "large",
    "rows of different scale",
)


def gradient(rng: np.random.Generator, family: str, n: int) -> Floats:
    """A gradient of n elements of a family."""
    normal = rng.standard_normal(n).astype(np.float32)
    match family:
        case "heavy tails":
            return (normal * np.exp(4 * rng.standard_normal(n))).astype(np.float32)
        case "few values":
            return rng.integers(-3, 4, n).astype(np.float32) * np.float32(0.5)
        case "constant":
            return np.full(n, -0.25, np.float32)
        case "zeros of both signs":
            return np.where(rng.random(n) < 0.5, -0.0, 0.0).astype(np.float32)
        case "nearly all zero":
            return np.where(rng.random(n) < 0.02, normal, 0).astype(np.float32)
        case "not finite":
            # The first has a payload that differs in each part of the significand.
            bits = np.array([0x7FABCDEF, 0xFF800001, 0xFFC12345, 0x7F800000, 0xFF800000], np.uint32)
            places = rng.integers(0, n, (1 + n // 50) * (n > 0))
            normal.view(np.uint32)[places] = rng.choice(bits, places.size)
            return normal
        case "denormals":
            # Between the least denormal and numbers just above the least normal one.
            return (normal * np.exp2(rng.integers(-149, -124, n))).astype(np.float32)
        case "any bits":
            return rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
        case "half of it large":
            return np.concatenate([normal[: n // 2] * np.float32(1e-3), normal[n // 2 :]])
        case "a tenth of it large":
            # A tile has more elements to keep than slots.
            return np.concatenate([normal[: n - n // 10] * np.float32(1e-3), normal[n - n // 10 :]])
        case "powers of two":
            # Sums of these lie at ties of rounding.
            return np.copysign(np.exp2(rng.integers(-26, 27, n)), normal).astype(np.float32)
        case "rows of different scale":
            # Some rows, of 1 to 50 elements, have most of what is kept, as gradients of models have.
            row = int(rng.integers(1, 51))
            scales = np.exp(2 * rng.standard_normal(-(-n // row))).astype(np.float32)
            return normal * scales.repeat(row)[:n]
        case "large":
            return (normal * np.float32(2e38)).clip(-3.4e38, 3.4e38).astype(np.float32)
    return normal
