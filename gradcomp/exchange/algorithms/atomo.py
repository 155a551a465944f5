"""ATOMO in the spectral domain: a few singular triples of every rank's gradient, all-gathered.

Wang, Sievert, Charles, Liu, Wright, Papailiopoulos: "ATOMO: Communication-efficient Learning via
Atomic Sparsification" (NeurIPS 2018). docs/algorithms/atomo.md has the formulas and the deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray, split
from gradcomp.codec.codec import derive_stream
from gradcomp.codec.spec import Spec
from gradcomp.exchange.algorithms.base import Algorithm
from gradcomp.exchange.algorithms.low_rank import (
    buffer,
    dense_to_factors,
    is_safe,
    matrix_shape,
    values_codec,
)
from gradcomp.exchange.make_memory import make_memory
from gradcomp.exchange.patterns.base import Context, Member
from gradcomp.exchange.patterns.gather import rank_seed
from gradcomp.exchange.rounds import AllGather, BucketRound
from gradcomp.stopwatch import timed

__all__ = ["Atomo"]


class Atomo(Algorithm):
    """Every rank sends its singular vectors, and adds up all ranks' products in rank order.

    1. ``M = gradient``, corrected by the memory if there is one; a matrix [rows, cols] on each rank.
    2. ``M = sum over i of s_i u_i v_i^T``: its singular value decomposition.
    3. ``p_i = min(1, c s_i)``, with the c for which they add up to ``rank`` (the paper's algorithm 1).
    4. Draw ``rank`` indices i with these probabilities. ``unbiased=false``: take the largest s_i.
    5. All-gather ``s_i / p_i u_i`` and ``v_i`` of these i; ``s_i u_i`` with ``unbiased=false``.
    6. ``average`` = the mean over the ranks of ``sum over i of (s_i / p_i u_i) v_i^T``.
    7. The memory keeps M minus this rank's sum of step 6.

    Deviation from the paper, which draws each i by itself: the number of terms is always ``rank``.
    """

    exchange: ClassVar[str] = (
        "each rank's singular vectors are all-gathered; every rank adds up their products; vectors "
        "and matrices that would hardly shrink travel dense"
    )

    def __init__(self, spec: Spec, context: Context) -> None:
        assert spec.algorithm is not None
        params: dict[str, Any] = dict(spec.algorithm.params)
        self._rank: int = params["rank"]
        self._unbiased: bool = params["unbiased"]
        self._min_rate: float = params["min_compression_rate"]
        self._codec = values_codec(params["values"])
        self._memory = make_memory(spec.memory, context.state, context.world_size, context.rates)
        self._seed = rank_seed(context.seed, context.rank)
        self.bucket = self

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Tensors of two or more dimensions that shrink by more than min_compression_rate."""
        if len(shape) < 2 or 0 in shape:
            return False
        return dense_to_factors(shape, self._rank, self._codec) > self._min_rate

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        shapes = [matrix_shape(member.key.shape) for member in members]
        sizes = [n * min(self._rank, *shape) for shape in shapes for n in shape]
        flat, parts = buffer(sizes)
        for member, shape, p, q in zip(members, shapes, parts[::2], parts[1::2], strict=True):
            matrix = self._memory.compensate(member.grad, member.key).reshape(shape)
            self._factorize(matrix, member, p, q)
        frame = self._codec.encode(flat)
        own_factors = split(self._codec.decode(frame), sizes)
        for member, shape, p, q in zip(
            members, shapes, own_factors[::2], own_factors[1::2], strict=True
        ):
            sent = np.empty(shape, np.float32)
            _core.outer(p, q, assigned=sent)
            self._memory.update(member.key, sent.reshape(-1))
            unsent = self._memory.unsent(member.key)
            if unsent is not None and not is_safe(p):
                _core.zero(unsent)
        frames = yield AllGather(name, frame)
        averages = [
            member.zeros().reshape(shape) for member, shape in zip(members, shapes, strict=True)
        ]
        for of_rank in frames:
            factors = split(self._codec.decode(of_rank, numel=flat.size), sizes)
            for average, p, q in zip(averages, factors[::2], factors[1::2], strict=True):
                _core.outer(p * np.float32(1.0 / len(frames)), q, added=average)
        return [average.reshape(-1) for average in averages]

    @timed("encode")
    def _factorize(self, matrix: FloatArray, member: Member, p: FloatArray, q: FloatArray) -> None:
        """Write singular vectors to p (of rows, scaled) and q (of columns); NaN if there are none."""
        rank = min(self._rank, *matrix.shape)
        p.fill(np.nan)
        q.fill(np.nan)
        if not np.isfinite(matrix).all():  # LAPACK would print a complaint to the terminal
            return
        try:
            with np.errstate(over="ignore"):  # values beyond float32 become Inf
                left, values, right = np.linalg.svd(matrix, full_matrices=False)
        except np.linalg.LinAlgError:
            return
        if not np.isfinite(values).all():
            return
        chosen, scale = np.arange(rank), values[:rank]
        if self._unbiased:
            stream = derive_stream(self._seed, member.step, member.key.tensor_id)
            probability = sampling_probabilities(values, rank)
            chosen = sample(probability, rank, stream / 2.0**64)
            with np.errstate(invalid="ignore"):
                scale = np.where(values[chosen] > 0, values[chosen] / probability[chosen], 0)
        p[:] = (left[:, chosen] * scale).T.reshape(-1)
        q[:] = right[chosen].reshape(-1)


def sampling_probabilities(values: FloatArray, count: int) -> npt.NDArray[np.float64]:
    """The paper's algorithm 1: probabilities proportional to the values, but at most 1.

    Args:
        values: the singular values, descending.
        count: sum of the probabilities, in [1, values.size].
    """
    values = values.astype(np.float64)
    probability = np.zeros(values.size)
    left = values[::-1].cumsum()[::-1]
    for i in range(values.size):
        if count * values[i] < left[i]:
            probability[i:] = count * values[i:] / left[i]
            break
        if count == 0:
            break
        probability[i] = 1
        count -= 1
    return probability


def sample(
    probability: npt.NDArray[np.float64], count: int, uniform: float
) -> npt.NDArray[np.intp]:
    """Systematic sampling: ``count`` indices, each with its own probability.

    Args:
        probability: of each index, in [0, 1]; the sum is ``count``.
        uniform: a uniform random number in [0, 1).
    """
    ends = probability.cumsum()
    indices = np.searchsorted(ends, uniform + np.arange(count), side="right")
    last = np.flatnonzero(probability)[-1]
    indices[indices > last] = last  # rounding may leave the last end below count
    return indices
