"""PowerSGD: low-rank averages by power iteration.

Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization" (NeurIPS 2019). docs/algorithms/powersgd.md has the formulas and the deviations.

A tensor is a matrix M of shape [shape[0], rest]; a factor of r vectors for its rows is called P and
one for its columns Q, both flat, one vector after the other. csrc/linalg does all matrix
arithmetic: the same bits on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import isqrt
from typing import Any, ClassVar

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray, room
from gradcomp.codec.codec import derive_stream
from gradcomp.codec.devices import device_of
from gradcomp.codec.spec import Spec
from gradcomp.errors import StateError
from gradcomp.exchange.algorithms.base import Algorithm
from gradcomp.exchange.algorithms.factor_device import product_device
from gradcomp.exchange.algorithms.low_rank import dense_to_factors, matrix_shape, values_codec
from gradcomp.exchange.algorithms.power_iteration import (
    Applied,
    DevicePhases,
    HostPhases,
    Matrix,
    Phases,
    Products,
)
from gradcomp.exchange.memory import RESIDUAL_LR, Residual, ScaledResidual, array_of
from gradcomp.exchange.patterns.base import Context, Member
from gradcomp.exchange.patterns.dense import dense_bucket
from gradcomp.exchange.rates import Rates
from gradcomp.exchange.rounds import BucketRound, Ready, Request, TensorKey

__all__ = ["PowerSGD"]

_P, _Q = "powersgd_p", "powersgd_q"


class PowerSGD(Algorithm):
    """PowerSGD in two variants: the paper's, two products a step, and the library's, one product.

    The paper's, algorithms 1 and 2:

    1. ``M = gradient + residual`` on each rank.
    2. ``Q = orthonormal(Q)``: the Q of the last step; random at first, or always if not ``warm_start``.
    3. ``P = M Q``, all-reduced to the mean over the ranks.
    4. ``P = orthonormal(P)``.
    5. ``Q = M^T P``, all-reduced to the mean over the ranks. Steps 2 to 5 ``iters_per_step`` times.
    6. ``average = P Q^T``.
    7. ``residual = M - P Q^T``.

    The library's does half of it in a step: 4 and 5 with the P of the last step, or, in the next step, 2
    and 3 with its Q. The average is the product with the new factor's mean, and the residual loses the
    product with this rank's own new factor. Further halves (``iters_per_step``) start from the residual.

    Deviation from the paper: step 2, which changes the range of the numbers alone.

    With ``batched`` the tensors of a bucket, one after the other and zeros up to the next square, are one
    matrix. Its factors have the name of the bucket's first tensor; new ones are drawn if the bucket has
    become another one. Nothing is kept of what belongs to the zeros.

    State, by tensor name: ``residual``, the part of M that no step has applied yet;
    ``powersgd_p``, [r, rows], and ``powersgd_q``, [r, cols]: the factors, equal on all ranks. With
    ``lr=scale`` also ``residual_lr``, the learning rate of the residual's last step.
    """

    exchange: ClassVar[str] = (
        "matrices travel as averages of thin factors, all factors of a bucket in one request; "
        "first steps, vectors and matrices that would hardly shrink travel dense"
    )

    replicated_kinds: ClassVar[tuple[str, ...]] = (_P, _Q)

    @classmethod
    def state_of(cls, params: Mapping[str, Any]) -> dict[str, Hashable]:
        """See `Algorithm.state_of`: factors fit another spec of the same rank only."""
        matrices = f"{params['rank']}, batched" if params["batched"] else str(params["rank"])
        return {"residual": None, _P: matrices, _Q: matrices}

    def __init__(self, spec: Spec, context: Context) -> None:
        assert spec.algorithm is not None
        params: dict[str, Any] = dict(spec.algorithm.params)
        self._rank: int = params["rank"]
        self._iterations: int = params["iters_per_step"]
        self._min_rate: float = params["min_compression_rate"]
        self.start_step = params["start_step"]
        self._method: str = params["orthogonalization"]
        # Devices know no other method; and bf16 is gathered.
        self._on_factor_devices = self._method == "gram_schmidt" and params["values"] != "bf16"
        self._paper = params["variant"] == "paper"
        self._warm_start: bool = params["warm_start"]
        self._batched: bool = params["batched"]
        self.on_devices = not self._batched
        self._codec = values_codec(params["values"])
        self._residuals = context.state.setdefault("residual", {})
        self._scales_lr = params["lr"] == "scale"
        self._rates = context.rates or Rates()
        self._last_rates = context.state.setdefault(RESIDUAL_LR, {})
        self._factors = {kind: context.state.setdefault(kind, {}) for kind in (_P, _Q)}
        self._seed = context.seed
        self.bucket = self

    def compression_rate(self, shape: tuple[int, ...]) -> float:
        """Bytes of a gradient over the bytes that a rank sends for it in a step, on average."""
        sides = 2 if self._paper else 1
        pair = dense_to_factors(shape, self._rank, self._codec)
        return 2 * pair / (sides * self._iterations)

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Tensors of two or more dimensions that shrink by more than min_compression_rate; all if batched."""
        if self._batched:
            return 0 not in shape
        return len(shape) >= 2 and 0 not in shape and self.compression_rate(shape) > self._min_rate

    def error_feedback(self) -> Residual:
        """See `Algorithm.error_feedback`."""
        if not self._scales_lr:
            return Residual(1.0, 1.0, self._residuals)
        return ScaledResidual(1.0, 1.0, self._residuals, self._last_rates, self._rates)

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        averages: dict[str, FloatArray] = {}
        dense = [member for member in members if member.step < self.start_step]
        if dense:
            results = yield from dense_bucket(name, dense)
            averages.update(zip((member.key.name for member in dense), results, strict=True))
        low_rank = [member for member in members if member.step >= self.start_step]
        if low_rank:
            batch = (
                _Batch(low_rank, self._rank, self.start_step, self._beginning)
                if self._batched
                else None
            )
            matrices = [self._open(one) for one in low_rank] if batch is None else [batch.matrix]
            variant = self._both_sides if self._paper else self._sides_in_turn
            yield from variant(name, matrices, self._phases(matrices))
            if batch is None:
                averages.update((one.key.name, one.average.reshape(-1)) for one in matrices)
            else:
                averages.update(batch.end())
        return [averages[member.key.name] for member in members]

    def _phases(self, matrices: Sequence[Matrix]) -> Phases:
        """Where factors live: on the device of all matrices, if they travel from there."""
        first = matrices[0].device
        device = product_device(first).factor_device() if self._on_factor_devices else None
        if device is None or any(matrix.device is not first for matrix in matrices):
            return HostPhases(self._codec, self._method)
        return DevicePhases(device, half=self._codec.name == "fp16")

    def _open(self, member: Member) -> Matrix:
        rows, cols = shape = matrix_shape(member.key.shape)
        residual, beta = self._beginning(member)
        rank = min(self._rank, rows, cols)
        grad, residual = member.grad.reshape(shape), residual.reshape(shape)
        return Matrix(member, member.step - self.start_step, rank, grad, residual, beta)

    def _beginning(self, member: Member) -> tuple[FloatArray, float]:
        """The residual of a tensor, and the factor with which it is added to the gradient."""
        key, beta = member.key, 1.0
        device = device_of(member.grad)
        if self._scales_lr and self._rates.of(key.name) == 0:
            residual = device.zeros(key.numel)  # the gradient alone; the residual waits
        else:
            residual = array_of(self._residuals, key, "residual", device)
            if self._scales_lr:
                beta = self._rates.advance(key.name, self._last_rates)
        return residual, beta

    def _sides_in_turn(
        self, name: str, matrices: Sequence[Matrix], phases: Phases
    ) -> Generator[Request | Ready, Any, None]:
        """The library's variant: in every iteration one product, from the side of the last one."""
        for iteration in range(self._iterations):
            # Matrices at different steps may need different sides.
            left = [(matrix.step * self._iterations + iteration) % 2 == 0 for matrix in matrices]
            fresh = iteration == 0 and not self._warm_start
            known = self._known(matrices, left, phases, fresh)
            products = yield from phases.multiply(f"{name}.{iteration}", matrices, known, left)
            self._settle(matrices, left, products, "own")

    def _both_sides(
        self, name: str, matrices: Sequence[Matrix], phases: Phases
    ) -> Generator[Request | Ready, Any, None]:
        """The paper's variant: P = M Q, then Q = M^T P; P Q^T is applied and subtracted."""
        right, left = [False] * len(matrices), [True] * len(matrices)
        for iteration in range(self._iterations):
            fresh = iteration == 0 and not self._warm_start
            known = self._known(matrices, right, phases, fresh)
            products = yield from phases.multiply(f"{name}.p{iteration}", matrices, known, right)
            self._settle(matrices, right, products, "nothing")
            known = self._known(matrices, left, phases, fresh=False)
            products = yield from phases.multiply(f"{name}.q{iteration}", matrices, known, left)
            last = iteration == self._iterations - 1
            self._settle(matrices, left, products, "average" if last else "nothing")

    def _known(
        self, matrices: Sequence[Matrix], left: Sequence[bool], phases: Phases, fresh: bool
    ) -> list[FloatArray]:
        """The factors with which matrices are multiplied, from the left or the right."""
        factors = []
        for matrix, from_left in zip(matrices, left, strict=True):
            kind = _P if from_left else _Q
            factor = phases.place(self._factor(kind, matrix, fresh))
            self._factors[kind][matrix.key.name] = factor
            factors.append(factor)
        return factors

    def _settle(
        self,
        matrices: Sequence[Matrix],
        left: Sequence[bool],
        products: Products,
        applied: Applied,
    ) -> None:
        """Apply averages, and keep them as the factors of the other side."""
        kinds = [self._factors[_Q if from_left else _P] for from_left in left]
        names = [matrix.key.name for matrix in matrices]
        earlier = [kind.get(name) for kind, name in zip(kinds, names, strict=True)]
        kept = products.settle(earlier, applied)
        for kind, name, factor in zip(kinds, names, kept, strict=True):
            kind[name] = factor

    def _factor(self, kind: str, matrix: Matrix, fresh: bool) -> FloatArray:
        """The factor of the last step, or else random numbers, the same on all ranks."""
        factor = self._factors[kind].get(matrix.key.name)
        size = matrix.size(of_rows=kind == _P)
        if factor is None or fresh or (self._batched and factor.size != size):
            factor = self.draw(kind, matrix)
        if factor.size != size:
            raise StateError(
                f"the {kind} of '{matrix.key.name}' has {factor.size} elements instead of "
                f"{size}: the state was saved with another rank or from another model"
            )
        return factor

    def draw(self, kind: str, matrix: Matrix) -> FloatArray:
        """A random factor, independent and uniform in [-1, 1): as good as normal numbers."""
        step = 0 if self._warm_start else matrix.step
        stream = derive_stream(self._seed, step, matrix.key.tensor_id)
        side = (_P, _Q).index(kind)
        return _core.uniform_signed(derive_stream(stream, side, 0), matrix.size(of_rows=kind == _P))


class _Batch:
    """The tensors of a bucket as one square matrix."""

    def __init__(
        self,
        members: Sequence[Member],
        rank: int,
        start_step: int,
        beginning: Callable[[Member], tuple[FloatArray, float]],
    ) -> None:
        first = members[0]
        ends = list(accumulate(member.key.numel for member in members))
        side = isqrt(ends[-1] - 1) + 1
        grad, self._residual, out = (room(side * side) for _ in range(3))
        self._parts: list[tuple[Member, FloatArray, slice]] = []
        for member, end in zip(members, ends, strict=True):
            place = slice(end - member.key.numel, end)
            residual, beta = beginning(member)
            grad[place] = member.grad.reshape(-1)
            np.multiply(residual.reshape(-1), np.float32(beta), out=self._residual[place])
            self._parts.append((member, residual, place))
        grad[ends[-1] :] = self._residual[ends[-1] :] = 0
        shape = (side, side)
        whole = first._replace(key=TensorKey(first.key.name, shape, side * side), out=out)
        self.matrix = Matrix(
            whole,
            first.step - start_step,
            min(rank, side),
            grad.reshape(shape),
            self._residual.reshape(shape),
            1.0,
        )

    def end(self) -> Iterator[tuple[str, FloatArray]]:
        """Keep the residuals; the averages by name."""
        average = self.matrix.average.reshape(-1)
        for member, residual, place in self._parts:
            residual.reshape(-1)[:] = self._residual[place]
            member.out[:] = average[place]
            yield member.key.name, member.out
