"""Gradients of many kinds, the same in every run, and Hypothesis strategies for arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st

from support.scope import by_scope

FloatArray = npt.NDArray[np.float32]
Shape = tuple[int, ...]

LAWS = settings(deadline=None, derandomize=True, database=None, max_examples=by_scope(25, 60))


# Of one tensor ------------------------------------------------------------------------------------


def _sparse(rng: np.random.Generator, n: int) -> FloatArray:
    return np.where(rng.random(n) < 0.02, rng.normal(size=n), 0.0).astype(np.float32)


def _nonfinite(rng: np.random.Generator, n: int) -> FloatArray:
    x = rng.normal(size=n).astype(np.float32)
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        x[rng.random(n) < 0.05] = value
    return x


def _denormal(rng: np.random.Generator, n: int) -> FloatArray:
    bits = rng.integers(0, 0x00800000, n, dtype=np.uint32)
    return (bits | rng.integers(0, 2, n, dtype=np.uint32) << 31).view(np.float32)


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "gaussian": lambda rng, n: rng.normal(size=n).astype(np.float32),
    "laplace": lambda rng, n: rng.laplace(scale=1e-3, size=n).astype(np.float32),
    "sparse": _sparse,
    "constant": lambda rng, n: np.full(n, 0.1, np.float32),
    "denormal": _denormal,
    "huge": lambda rng, n: (rng.normal(size=n) * 1e38).clip(-3.4e38, 3.4e38).astype(np.float32),
    "nonfinite": _nonfinite,
    "any bits": lambda rng, n: rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32),
}


def sample(kind: str, n: int) -> FloatArray:
    """A gradient of n elements, the same in every run."""
    return DISTRIBUTIONS[kind](np.random.default_rng([n, *kind.encode()]), n)


def normal(shape: int | Shape, seed: int = 0) -> FloatArray:
    """Standard normal elements, drawn in float64."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def structured(rows: int, cols: int, seed: int = 0, directions: int = 3) -> FloatArray:
    """A matrix with rows and columns that differ in size, with a few directions that stand out."""
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.normal(size=(rows, 1)) + rng.normal(size=cols))
    pairs = rng.normal(size=(rows, directions)) @ rng.normal(size=(directions, cols))
    return (scales * rng.normal(size=(rows, cols)) + 8 * pairs).astype(np.float32)


# Of several ranks ---------------------------------------------------------------------------------


def one_stream(
    shapes: Mapping[str, Shape], ranks: int, seed: int | Sequence[int]
) -> dict[str, list[FloatArray]]:
    """Normal gradients of every tensor and rank, from one random stream."""
    rng = np.random.default_rng(seed)
    return {
        name: [rng.standard_normal(shape, np.float32) for _ in range(ranks)]
        for name, shape in shapes.items()
    }


def own_streams(shapes: Mapping[str, Shape], ranks: int, step: int) -> dict[str, list[FloatArray]]:
    """Normal gradients that depend on a tensor's name, the rank and the step alone."""
    return {
        name: [
            np.random.default_rng([rank, step, *name.encode()]).standard_normal(shape, np.float32)
            for rank in range(ranks)
        ]
        for name, shape in shapes.items()
    }


def of_one_tensor(ranks: int, shape: Shape, seed: int = 0) -> list[FloatArray]:
    """Normal gradients of one tensor, for every rank."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for _ in range(ranks)]


# Strategies: they draw a size and a seed, as drawing element by element is slow -----------------------

seeds = st.integers(0, 2**32 - 1)

_EXTREMES = np.array(
    [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF],
    np.uint32,
)
"""Magnitudes: zero, the ends of the denormals, the smallest normal number, 1, the largest number, Inf, two NaNs."""


def with_specials(
    rng: np.random.Generator, common: FloatArray, special: npt.NDArray[np.generic]
) -> FloatArray:
    """``common`` with none, some, most or all of its elements replaced by a few of the special values."""
    few = rng.choice(special.astype(np.float32), rng.integers(1, special.size, endpoint=True))
    replaced = rng.random(common.size) < rng.choice([0.0, 0.1, 0.9, 1.0])
    return np.where(replaced, rng.choice(few, common.size), common)


def _any_bits(n: int, seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    common = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    return with_specials(rng, common, np.append(_EXTREMES, _EXTREMES | 1 << 31).view(np.float32))


def finite_of(rng: np.random.Generator, n: int, limit: float) -> FloatArray:
    """n numbers of magnitudes up to a limit that is a float32, most of them of a similar magnitude."""
    scale = limit * 2.0 ** rng.choice([0, -1, -20, -60, -120])
    common = (rng.uniform(-1, 1, n) * scale).astype(np.float32)
    below = np.nextafter(np.float32(limit), np.float32(0))
    special = np.array([0, 1e-45, 2.0**-126, limit / 3, limit / 2, below, limit])
    return with_specials(rng, common, np.append(special, -special))


def any_bits(max_size: int = 300) -> st.SearchStrategy[FloatArray]:
    """Float32 arrays of any bit patterns."""
    return st.builds(_any_bits, st.integers(0, max_size), seeds)


def finite(limit: float, max_size: int = 300) -> st.SearchStrategy[FloatArray]:
    """Float32 arrays of magnitudes up to a limit that is a float32."""
    return st.builds(
        lambda n, seed: finite_of(np.random.default_rng(seed), n, limit),
        st.integers(0, max_size),
        seeds,
    )
