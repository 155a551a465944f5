"""PowerSGD: low-rank averages by power iteration.

Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization" (NeurIPS 2019). docs/algorithms/powersgd.md has the formulas and the deviations.

A tensor is a matrix M of shape [shape[0], rest]; a factor of r vectors for its rows is called P and
one for its columns Q, both flat, one vector after the other. csrc/linalg does all matrix
arithmetic: the same bits on every rank.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping, Sequence
from typing import Any, ClassVar

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray, split
from gradcomp.codec.codec import derive_stream
from gradcomp.codec.devices import HOST, Device, device_of
from gradcomp.codec.products import ToApply, ToMultiply
from gradcomp.codec.spec import Spec
from gradcomp.errors import StateError
from gradcomp.exchange.algorithms.base import Algorithm
from gradcomp.exchange.algorithms.low_rank import (
    average_of_factors,
    buffer,
    dense_to_factors,
    is_safe,
    matrix_shape,
    values_codec,
)
from gradcomp.exchange.memory import RESIDUAL_LR, Residual, ScaledResidual, array_of
from gradcomp.exchange.patterns.base import Context, Member
from gradcomp.exchange.patterns.dense import dense_bucket
from gradcomp.exchange.rates import Rates
from gradcomp.exchange.rounds import BucketRound, Ready, Request
from gradcomp.stopwatch import timed

__all__ = ["PowerSGD"]

_P, _Q = "powersgd_p", "powersgd_q"

_orthonormalize = timed("encode")(_core.orthonormalize)


class PowerSGD(Algorithm):
    """PowerSGD in two variants: the library's, one product a step, and the paper's, two products.

    State, by tensor name: ``residual``, the part of M that no step has applied yet;
    ``powersgd_p``, [r, rows], and ``powersgd_q``, [r, cols]: the factors, equal on all ranks. With
    ``lr=scale`` also ``residual_lr``, the learning rate of the residual's last step.
    """

    exchange: ClassVar[str] = (
        "matrices travel as averages of thin factors, all factors of a bucket in one request; "
        "first steps, vectors and matrices that would hardly shrink travel dense"
    )

    on_devices = True

    replicated_kinds: ClassVar[tuple[str, ...]] = (_P, _Q)

    @classmethod
    def state_of(cls, params: Mapping[str, Any]) -> dict[str, Hashable]:
        """See `Algorithm.state_of`: factors fit another spec of the same rank only."""
        rank = str(params["rank"])
        return {"residual": None, _P: rank, _Q: rank}

    def __init__(self, spec: Spec, context: Context) -> None:
        assert spec.algorithm is not None
        params: dict[str, Any] = dict(spec.algorithm.params)
        self._rank: int = params["rank"]
        self._iterations: int = params["iters_per_step"]
        self._min_rate: float = params["min_compression_rate"]
        self.start_step = params["start_step"]
        self._method: str = params["orthogonalization"]
        self._paper = params["variant"] == "paper"
        self._warm_start: bool = params["warm_start"]
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
        """Tensors of two or more dimensions that shrink by more than min_compression_rate."""
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
            matrices = [self._open(member) for member in low_rank]
            yield from (self._both_sides if self._paper else self._sides_in_turn)(name, matrices)
            averages.update((matrix.key.name, matrix.average.reshape(-1)) for matrix in matrices)
        return [averages[member.key.name] for member in members]

    def _open(self, member: Member) -> _Matrix:
        rows, cols = shape = matrix_shape(member.key.shape)
        key, step = member.key, member.step - self.start_step
        beta = 1.0
        device = device_of(member.grad)
        if self._scales_lr and self._rates.of(key.name) == 0:
            residual = device.zeros(key.numel)  # the gradient alone; the residual waits
        else:
            residual = array_of(self._residuals, key, "residual", device)
            if self._scales_lr:
                beta = self._rates.advance(key.name, self._last_rates)
        rank = min(self._rank, rows, cols)
        grad, residual = member.grad.reshape(shape), residual.reshape(shape)
        return _Matrix(member, step, rank, grad, residual, beta)

    def _sides_in_turn(
        self, name: str, matrices: Sequence[_Matrix]
    ) -> Generator[Request | Ready, Any, None]:
        """The library's variant: in every iteration one product, from the side of the last one."""
        for iteration in range(self._iterations):
            # Matrices at different steps may need different sides.
            left = [(matrix.step * self._iterations + iteration) % 2 == 0 for matrix in matrices]
            known, outputs = [], []
            for matrix, from_left in zip(matrices, left, strict=True):
                fresh = iteration == 0 and not self._warm_start
                factor = self._factor(_P if from_left else _Q, matrix, fresh)
                _orthonormalize(factor, matrix.rank, self._method)
                known.append(factor)
                outputs.append(matrix.size(_Q if from_left else _P))
            flat, parts = buffer(outputs)
            yield from _multiply(name, matrices, known, left, parts)
            own, mean = yield from average_of_factors(f"{name}.{iteration}", flat, self._codec)
            own_parts, means = split(own, outputs), split(mean, outputs)
            _apply(
                matrices,
                [
                    (factor, average, factor, sent)
                    if from_left
                    else (average, factor, sent, factor)
                    for from_left, factor, sent, average in zip(
                        left, known, own_parts, means, strict=True
                    )
                ],
            )
            for matrix, from_left, average in zip(matrices, left, means, strict=True):
                self._keep(_Q if from_left else _P, matrix, average)

    def _both_sides(
        self, name: str, matrices: Sequence[_Matrix]
    ) -> Generator[Request | Ready, Any, None]:
        """The paper's variant: P = M Q, then Q = M^T P; P Q^T is applied and subtracted."""
        rows = [matrix.size(_P) for matrix in matrices]
        cols = [matrix.size(_Q) for matrix in matrices]
        for iteration in range(self._iterations):
            flat, parts = buffer(rows)
            known = []
            for matrix in matrices:
                fresh = iteration == 0 and not self._warm_start
                factor = self._factor(_Q, matrix, fresh)
                _orthonormalize(factor, matrix.rank, self._method)
                known.append(factor)
            yield from _multiply(name, matrices, known, [False] * len(matrices), parts)
            _, mean = yield from average_of_factors(f"{name}.p{iteration}", flat, self._codec)
            for matrix, left in zip(matrices, split(mean, rows), strict=True):
                self._keep(_P, matrix, left)
            flat, parts = buffer(cols)
            known = [self._factors[_P][matrix.key.name] for matrix in matrices]
            for matrix, left in zip(matrices, known, strict=True):
                _orthonormalize(left, matrix.rank, self._method)
            yield from _multiply(name, matrices, known, [True] * len(matrices), parts)
            _, mean = yield from average_of_factors(f"{name}.q{iteration}", flat, self._codec)
            means = split(mean, cols)
            if iteration == self._iterations - 1:
                pairs = zip(known, means, strict=True)
                _apply(matrices, [(left, right, left, right) for left, right in pairs])
            for matrix, right in zip(matrices, means, strict=True):
                self._keep(_Q, matrix, right)

    def _factor(self, kind: str, matrix: _Matrix, fresh: bool) -> FloatArray:
        """The factor of the last step, or else random numbers, the same on all ranks."""
        factor = self._factors[kind].get(matrix.key.name)
        if factor is None or fresh:
            factor = self._factors[kind][matrix.key.name] = self.draw(kind, matrix)
        if factor.size != matrix.size(kind):
            raise StateError(
                f"the {kind} of '{matrix.key.name}' has {factor.size} elements instead of "
                f"{matrix.size(kind)}: the state was saved with another rank or from another model"
            )
        return factor

    def draw(self, kind: str, matrix: _Matrix) -> FloatArray:
        """A random factor, independent and uniform in [-1, 1): as good as normal numbers."""
        step = 0 if self._warm_start else matrix.step
        stream = derive_stream(self._seed, step, matrix.key.tensor_id)
        side = (_P, _Q).index(kind)
        return _core.uniform_signed(derive_stream(stream, side, 0), matrix.size(kind))

    def _keep(self, kind: str, matrix: _Matrix, factor: FloatArray) -> None:
        kept = self._factors[kind][matrix.key.name] = factor.copy()
        _core.zero_nonfinite(kept)


class _Matrix:
    """One tensor in one step: M, in the residual's own memory, and the average computed so far."""

    def __init__(
        self,
        member: Member,
        step: int,
        rank: int,
        grad: FloatArray,
        residual: FloatArray,
        beta: float,
    ) -> None:
        self.key = member.key
        self.step = step
        self.rank = rank
        self.device = device_of(grad)
        self._member = member
        self._sides: tuple[int, ...] = grad.shape
        self._m = residual
        self._grad: FloatArray | None = grad
        self._beta = beta
        self._average: FloatArray | None = None

    def size(self, kind: str) -> int:
        """Elements of a factor."""
        return self.rank * self._sides[0 if kind == _P else 1]

    def to_multiply(self, factor: FloatArray, transposed: bool, out: FloatArray) -> ToMultiply:
        """A product; the first one also sets M to beta * residual + gradient."""
        grad, self._grad = self._grad, None
        return ToMultiply(self._m, grad, self._beta, factor, transposed, out)

    def to_apply(
        self, p: FloatArray, q: FloatArray, own_p: FloatArray, own_q: FloatArray
    ) -> ToApply:
        """Add p q^T to the average, and subtract own_p own_q^T from M.

        Products of an M that is not finite are not finite, so the factors tell.
        """
        begun = self._average is not None
        safe = is_safe(own_p) and is_safe(own_q)
        return ToApply(self._m, self.average, begun, p, q, own_p, own_q, safe)

    @property
    def average(self) -> FloatArray:
        """The average so far; at first memory of any content, which the thread that decodes takes."""
        if self._average is None:
            self._average = self._member.out.reshape(self._sides)
        return self._average


def _multiply(
    name: str,
    matrices: Sequence[_Matrix],
    factors: Sequence[FloatArray],
    transposed: Sequence[bool],
    outputs: Sequence[FloatArray],
) -> Generator[Ready, Any, None]:
    """Products of all matrices, on each one's device."""
    of_devices: dict[Device, list[ToMultiply]] = {}
    for matrix, factor, side, out in zip(matrices, factors, transposed, outputs, strict=True):
        of_devices.setdefault(matrix.device, []).append(matrix.to_multiply(factor, side, out))
    own = of_devices.pop(HOST, [])
    waits = [device.multiply(works) for device, works in of_devices.items()]
    HOST.multiply(own)

    def wait() -> None:
        for one in waits:
            one()

    if waits:
        yield Ready(name, wait)


def _apply(
    matrices: Sequence[_Matrix],
    factors: Sequence[tuple[FloatArray, FloatArray, FloatArray, FloatArray]],
) -> None:
    """Update all averages and residuals, on each matrix's device."""
    of_devices: dict[Device, list[ToApply]] = {}
    for matrix, four in zip(matrices, factors, strict=True):
        of_devices.setdefault(matrix.device, []).append(matrix.to_apply(*four))
    for device, works in of_devices.items():
        device.apply(works)
