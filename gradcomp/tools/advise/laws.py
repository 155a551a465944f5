"""Laws of costs: linear in the buckets, tensors, elements and ranks of an exchange."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = ["Features", "Law", "Point", "fit_law"]


class Features(NamedTuple):
    """The size of some buckets.

    Attributes:
        buckets: their number.
        tensors: number of tensors in them.
        elements: number of elements.
        rows, columns: their sums over the tensors as matrices, to which factors are as large.
    """

    buckets: float
    tensors: float
    elements: float
    rows: float
    columns: float

    @classmethod
    def of_bucket(cls, shapes: Iterable[tuple[int, ...]]) -> Features:
        """The size of one bucket with tensors of these shapes."""
        matrices = [(shape[0], math.prod(shape[1:])) if shape else (1, 1) for shape in shapes]
        return cls(
            1,
            len(matrices),
            sum(rows * columns for rows, columns in matrices),
            sum(rows for rows, _ in matrices),
            sum(columns for _, columns in matrices),
        )

    def plus(self, other: Features) -> Features:
        """Both together."""
        return Features(*(a + b for a, b in zip(self, other, strict=True)))


class Point(NamedTuple):
    """A measured value: the cost of buckets on a number of ranks."""

    features: Features
    ranks: int
    value: float


@dataclass(frozen=True)
class Law:
    """A cost: the features, weighted.

    Attributes:
        fixed: weights on any number of ranks.
        per_rank: further weights for each rank.
        shared: further weights that the ranks divide among themselves.
    """

    fixed: tuple[float, ...]
    per_rank: tuple[float, ...]
    shared: tuple[float, ...]

    def at(self, features: Features, ranks: int) -> float:
        """The cost of buckets on a number of ranks."""
        weights = (
            a + ranks * b + c / ranks
            for a, b, c in zip(self.fixed, self.per_rank, self.shared, strict=True)
        )
        return sum(weight * feature for weight, feature in zip(weights, features, strict=True))


_COUNT = len(Features._fields)
_FIXED, _PER_RANK, _SHARED = (tuple(range(i * _COUNT, (i + 1) * _COUNT)) for i in range(3))
_KINDS = (_FIXED, _PER_RANK, _SHARED, _FIXED + _PER_RANK)
"""Dependences on the ranks, as weights that may be above 0. More at once would fit noise."""

_MOST = 4
"""Weights of a law above 0."""

_LEAST_GAIN = 1e-3
"""Of the sum of squared relative errors, which a further weight must be worth."""


def fit_law(points: Sequence[Point]) -> Law:
    """The law without negative weights that fits best, by relative errors.

    Weights are few, so each choice of those above 0 is tried.
    """
    used = [point for point in points if point.value > 0]
    best, least = np.zeros(3 * _COUNT), math.inf
    if used:
        rows = np.array(
            [
                [
                    x * y / point.value
                    for x in (1, point.ranks, 1 / point.ranks)
                    for y in point.features
                ]
                for point in used
            ]
        )
        scale = rows.mean(axis=0)  # elements are a million times the buckets
        for active in _choices():
            chosen = rows[:, active] / scale[active]
            weights, _, rank, _ = np.linalg.lstsq(chosen, np.ones(len(used)), rcond=None)
            if rank < len(active) or (weights < 0).any():
                continue
            error = float(np.sum((chosen @ weights - 1) ** 2)) + _LEAST_GAIN * len(active)
            if error < least:
                best, least = np.zeros(3 * _COUNT), error
                best[active] = weights / scale[active]
    return Law(*(tuple(map(float, best[list(kind)])) for kind in (_FIXED, _PER_RANK, _SHARED)))


@functools.cache
def _choices() -> list[list[int]]:
    """The choices of weights that may be above 0, small ones first."""
    found = {
        active
        for kind in _KINDS
        for size in range(1, _MOST + 1)
        for active in itertools.combinations(kind, size)
    }
    return [list(active) for active in sorted(found, key=lambda choice: (len(choice), choice))]
