"""Dion: orthonormal low-rank steps from the momentum.

Ahn et al.: "Dion: Distributed Orthonormalized Updates" (arXiv:2504.05295), algorithm 1.
docs/algorithms/dion.md has the formulas and the deviations.

A tensor is a matrix of shape [shape[0], rest], transposed if that is wider than tall. M is its
momentum, each rank's own; the factors P for the longer side and R for the shorter one are averaged.
Q, R with unit columns, starts the next step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.codec import derive_stream
from gradcomp.codec.spec import Spec
from gradcomp.errors import StateError
from gradcomp.exchange.algorithms.low_rank import (
    average_in_place,
    averages_of,
    dense_to_factors,
    matrix_shape,
    values_codec,
)
from gradcomp.exchange.algorithms.optimizer_step import OptimizerStep
from gradcomp.exchange.memory import array_of
from gradcomp.exchange.patterns.base import Context, Member
from gradcomp.exchange.rounds import BucketRound, TensorKey
from gradcomp.stopwatch import timed

__all__ = ["Dion"]

_Q = "dion_q"

_NOISE = {"fp32": 2.0**-16, "fp16": 2.0**-8, "bf16": 2.0**-5}
"""Columns of R up to this part of the longest one may be rounding errors alone: 8 units in the last place of
a half-precision type on the wire, and 256 of float32, where the errors of long sums are the larger ones."""


class Dion(OptimizerStep):
    """Steps of the optimizer Dion.

    1. ``M = M + gradient`` on each rank; steps 2 to 7 take the transpose of a matrix with rows < cols.
    2. ``P = M Q``, all-reduced to the mean over the ranks; Q is that of the last step, at first random.
    3. ``P = orthonormal(P)``.
    4. ``R = M^T P``, all-reduced to the mean over the ranks; columns within rounding errors count as 0.
    5. ``M = M - (1 - mu) P R^T`` on each rank, with mu for ``momentum``: the error feedback.
    6. ``Q = R`` with columns of length 1; a column of zeros keeps that of the last step.
    7. ``step = sqrt(rows / cols) P Q^T``, without the columns with an R of 0.

    Where the averaged momentum has a rank below r, P has arbitrary columns, which step 7 leaves out: a
    matrix with a momentum of 0 stays where it is.

    A matrix with factors of no fewer bytes is averaged itself instead: M after step 1.

    State, by tensor name: ``momentum``, M; ``dion_q``, [r, min(rows, cols)], equal on all ranks.
    """

    exchange: ClassVar[str] = (
        "matrices travel as averages of two thin factors, all factors of a bucket in one request "
        "for each side; matrices that would not shrink, and vectors, travel dense"
    )

    momentum_of: ClassVar[str] = "dion"

    replicated_kinds: ClassVar[tuple[str, ...]] = (_Q,)

    @classmethod
    def state_of(cls, params: Mapping[str, Any]) -> dict[str, Hashable]:
        """See `Algorithm.state_of`: Q fits another spec of the same rank only."""
        return {**super().state_of(params), _Q: str(params["rank_fraction"])}

    def __init__(self, spec: Spec, context: Context) -> None:
        super().__init__(spec, context)
        params = self._params
        self._rank_fraction: float = params["rank_fraction"]
        self._momentum: float = params["momentum"]
        self._method: str = params["orthogonalization"]
        self._codec = values_codec(params["values"])
        self._noise = _NOISE[params["values"]]
        self._q = context.state.setdefault(_Q, {})
        self._seed = context.seed

    def rank(self, shape: tuple[int, ...]) -> int:
        """Number of columns of a matrix's factors."""
        return math.ceil(self._rank_fraction * min(matrix_shape(shape)))

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        thin: list[_Matrix] = []
        dense: list[_Matrix] = []
        for member in members:
            matrix = self._open(member)
            factors = dense_to_factors(member.key.shape, matrix.rank, self._codec)
            (thin if factors > 1 else dense).append(matrix)
        products = [matrix.multiply() for matrix in thin]
        if dense:
            yield from average_in_place(f"{name}.dense", [matrix.add() for matrix in dense])
        lefts = yield from averages_of(f"{name}.p", products, self._codec)
        lefts += [matrix.multiply() for matrix in dense]
        for matrix, left in zip(thin + dense, lefts, strict=True):
            matrix.set_left(left, self._method)
        rights = yield from averages_of(
            f"{name}.r", [matrix.multiply_transposed() for matrix in thin], self._codec
        )
        rights += [matrix.multiply_transposed() for matrix in dense]
        noise = [self._noise] * len(thin) + [_NOISE["fp32"]] * len(dense)
        for matrix, right, of_matrix in zip(thin + dense, rights, noise, strict=True):
            self._q[matrix.key.name] = matrix.finish(right, self._momentum, of_matrix)
        return [member.out for member in members]

    def _open(self, member: Member) -> _Matrix:
        key = member.key
        shape = matrix_shape(key.shape)
        rank = self.rank(key.shape)
        q = self._q.get(key.name)
        if q is None:
            stream = derive_stream(self._seed, 0, key.tensor_id)
            q = _core.uniform_signed(stream, rank * min(shape))
        if q.size != rank * min(shape):
            raise StateError(
                f"the {_Q} of '{key.name}' has {q.size} elements instead of {rank * min(shape)}: the "
                "state was saved with another rank_fraction or from another model"
            )
        momentum = array_of(self._momenta, key, "momentum").reshape(shape)
        return _Matrix(
            key, rank, member.grad.reshape(shape), momentum, q, member.out.reshape(shape)
        )


@dataclass
class _Matrix:
    """One tensor in one step; M is taken transposed where it has fewer rows than columns.

    Attributes:
        rank: number of columns of its factors.
        grad: [rows, cols], of this rank; None once it is in M.
        momentum: M, [rows, cols], updated in place.
        q: [rank * min(rows, cols)], from the last step.
        out: [rows, cols], the step.
    """

    key: TensorKey
    rank: int
    grad: FloatArray | None
    momentum: FloatArray
    q: FloatArray
    out: FloatArray
    _finite: bool = True
    _left: FloatArray | None = None

    @property
    def _wide(self) -> bool:
        rows, cols = self.momentum.shape
        return bool(rows < cols)

    @timed("compensate")
    def add(self) -> FloatArray:
        """M, with the gradient added."""
        assert self.grad is not None
        self.momentum += self.grad
        self.grad = None
        return self.momentum

    @timed("encode")
    def multiply(self) -> FloatArray:
        """M Q; adds the gradient to M first, unless `add` has."""
        product = np.empty(self.rank * max(self.momentum.shape), np.float32)
        multiply = _core.multiply_transposed if self._wide else _core.multiply
        multiply(self.momentum, self.grad, self.q, product)
        return product

    @timed("encode")
    def set_left(self, left: FloatArray, method: str) -> None:
        """Take P, the average of M Q, and make it orthonormal."""
        self._finite = bool(np.isfinite(left).all())
        self._left = left.copy()
        _core.orthonormalize(self._left, self.rank, method)

    @timed("encode")
    def multiply_transposed(self) -> FloatArray:
        """M^T P."""
        assert self._left is not None
        product = np.empty(self.rank * min(self.momentum.shape), np.float32)
        multiply = _core.multiply if self._wide else _core.multiply_transposed
        multiply(self.momentum, None, self._left, product)
        return product

    @timed("decode")
    def finish(self, right: FloatArray, momentum: float, noise: float) -> FloatArray:
        """Take R, the average of M^T P: update M, and write the step. Returns the next Q.

        The averages are equal on all ranks. If one is not finite, the step is NaN, M starts again from 0,
        as it may hold numbers too large for any product, and Q stays.

        Args:
            noise: columns of R up to this part of the longest one count as 0.
        """
        if not (self._finite and np.isfinite(right).all()):
            self.momentum[:] = 0
            self.out[:] = np.nan
            return self.q
        rows, cols = self.momentum.shape
        squares = _squared_lengths(right, self.rank)
        counts = (squares > noise**2 * squares.max()).astype(np.float32)[:, np.newaxis]
        directions = right.reshape(self.rank, -1)
        q = right.copy()
        _core.normalize(q, self.rank)
        columns = q.reshape(self.rank, -1)
        self._outer(directions * (counts * np.float32(1 - momentum)), subtracted=self.momentum)
        self._outer(columns * (counts * np.float32(math.sqrt(rows / cols))), assigned=self.out)
        unknown = squares == 0
        columns[unknown] = self.q.reshape(self.rank, -1)[unknown]
        return q

    def _outer(self, right: FloatArray, **output: FloatArray) -> None:
        """Assign ``P right^T``, or subtract it."""
        assert self._left is not None
        flat = right.reshape(-1)
        _core.outer(*((flat, self._left) if self._wide else (self._left, flat)), **output)


def _squared_lengths(vectors: FloatArray, count: int) -> FloatArray:
    """The squares of the lengths of ``count`` vectors, relative to their largest element; 0 without one.

    Numbers below float32's normal ones have no accuracy, so they count as 0.
    """
    squares = np.zeros(count, np.float32)
    largest = np.abs(vectors).max()
    if largest >= np.finfo(np.float32).tiny:
        scaled = vectors / largest
        _core.chunk_norms(scaled * scaled, vectors.size // count, squares)
    return squares
