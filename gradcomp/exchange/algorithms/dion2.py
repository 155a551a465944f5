"""Dion2: orthonormal steps from the largest rows or columns of the momentum.

Ahn, Amsel, Langford: "Dion2: A Simple Method to Shrink Matrix in Muon" (arXiv:2512.16928).
docs/algorithms/dion.md has the formulas and the deviations.

A tensor is a matrix of shape [shape[0], rest]. M is its momentum, each rank's own. Its lines are its
rows, or its columns if these are fewer: the ranks choose the same lines and average these alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray, split
from gradcomp.codec.spec import Spec
from gradcomp.exchange.algorithms.low_rank import (
    average_in_place,
    averages_of,
    matrix_shape,
    values_codec,
)
from gradcomp.exchange.algorithms.optimizer_step import OptimizerStep
from gradcomp.exchange.algorithms.polar_factor import polar_factor
from gradcomp.exchange.algorithms.top_parts import largest
from gradcomp.exchange.memory import array_of
from gradcomp.exchange.patterns.base import Context, Member
from gradcomp.exchange.rounds import AllReduce, BucketRound
from gradcomp.stopwatch import timed

__all__ = ["Dion2"]


class Dion2(OptimizerStep):
    """Steps for the optimizer Dion.

    1. ``M = M + gradient`` on each rank.
    2. ``norm[i]`` = the L1 norm of line i of M, all-reduced to the mean over the ranks.
    3. ``K`` = the ``fraction`` of the lines with the largest norms; equal on all ranks.
    4. ``S = M[K]``, all-reduced to the mean over the ranks.
    5. ``step[K] = sqrt(rows / cols) polar(S)``, and 0 in all other lines; see `polar_factor`.
    6. ``M[K] = mu M[K]`` on each rank, with mu for ``momentum``. Other lines wait: the error feedback.

    Deviation from the authors' code, which averages whole gradients: M is each rank's own.

    State, by tensor name: ``momentum``, M.
    """

    exchange: ClassVar[str] = (
        "norms of a matrix's rows are all-reduced, or of its columns if these are fewer; then those "
        "with the largest norms; matrices that would not shrink, and vectors, travel dense"
    )
    momentum_of: ClassVar[str] = "dion2"

    def __init__(self, spec: Spec, context: Context) -> None:
        super().__init__(spec, context)
        params = self._params
        self._fraction: float = params["fraction"]
        self._momentum: float = params["momentum"]
        self._codec = values_codec(params["values"])
        self._item = 4 if params["values"] == "fp32" else 2

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        thin: list[_Matrix] = []
        dense: list[_Matrix] = []
        for member in members:
            matrix = _Matrix(member, self._fraction, self._momenta)
            (thin if matrix.sent_bytes(self._item) < 4 * member.key.numel else dense).append(matrix)
        for matrix in thin + dense:
            matrix.add_gradient()
        if dense:
            yield from average_in_place(f"{name}.dense", [matrix.momentum for matrix in dense])
        norms = [matrix.norms() for matrix in thin]
        if thin:
            flat = yield AllReduce(f"{name}.norms", np.concatenate(norms))
            norms = split(flat, [norm.size for norm in norms])
        norms += [matrix.norms() for matrix in dense]
        chosen = [matrix.choose(norm) for matrix, norm in zip(thin + dense, norms, strict=True)]
        sent = yield from averages_of(f"{name}.lines", chosen[: len(thin)], self._codec)
        for matrix, average in zip(thin + dense, sent + chosen[len(thin) :], strict=True):
            matrix.finish(average, self._momentum)
        return [member.out for member in members]


class _Matrix:
    """One tensor in one step.

    Attributes:
        momentum: M, [rows, cols], updated in place.
    """

    def __init__(self, member: Member, fraction: float, momenta: dict[str, FloatArray]) -> None:
        shape = matrix_shape(member.key.shape)
        self._grad = member.grad.reshape(shape)
        self._out = member.out.reshape(shape)
        self.momentum = array_of(momenta, member.key, "momentum").reshape(shape)
        self._by_rows = shape[0] <= shape[1]
        self._count = math.ceil(fraction * min(shape))
        self._chosen: npt.NDArray[np.intp] = np.empty(0, np.intp)

    def sent_bytes(self, item: int) -> int:
        """Bytes of the norms and of the chosen lines, with this many for each element."""
        shape = self.momentum.shape
        return 4 * min(shape) + item * self._count * max(shape)

    @timed("compensate")
    def add_gradient(self) -> None:
        """M += gradient."""
        self.momentum += self._grad

    @timed("encode")
    def norms(self) -> FloatArray:
        """L1 norms of M's lines."""
        if not self._by_rows:
            norms: FloatArray = np.abs(self.momentum).sum(axis=0)
            return norms
        norms = np.empty(len(self.momentum), np.float32)
        _core.chunk_norms(self.momentum.reshape(-1), self.momentum.shape[1], norms)
        return norms

    @timed("encode")
    def choose(self, norms: FloatArray) -> FloatArray:
        """Choose lines by averaged norms; returns M's, [lines, elements]."""
        self._chosen = largest(norms, self._count)
        return np.ascontiguousarray(self._lines(self.momentum)[self._chosen])

    @timed("decode")
    def finish(self, average: FloatArray, momentum: float) -> None:
        """Take the average of the chosen lines: write the step, and update M.

        The average is equal on all ranks. If it is not finite, the step is NaN, and M starts again from 0,
        as it may hold numbers too large for any sum.
        """
        if not np.isfinite(average).all():
            self.momentum[:] = 0
            self._out[:] = np.nan
            return
        rows, cols = self._out.shape
        self._out[:] = 0
        self._lines(self._out)[self._chosen] = polar_factor(average) * np.float32(
            math.sqrt(rows / cols)
        )
        kept = np.ones((min(rows, cols), 1), np.float32)
        kept[self._chosen] = momentum
        lines = self._lines(self.momentum)
        lines *= kept  # faster than chosen columns alone

    def _lines(self, matrix: FloatArray) -> FloatArray:
        return matrix if self._by_rows else matrix.T
