"""DeMo: steps from the largest coefficients of the ranks' momenta.

Peng, Lester, Quesnelle, Kingma: "DeMo: Decoupled Momentum Optimization" (arXiv:2411.19870).
docs/algorithms/demo.md has the formulas and the deviations.

The rotation is the same in all steps and on all ranks, so the momentum is kept rotated: it is a
residual with decay, and the exchange is that of ``blocktopk``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.codec import derive_stream, get_codec
from gradcomp.codec.spec import Spec
from gradcomp.exchange.algorithms.optimizer_step import OptimizerStep
from gradcomp.exchange.averaging import Averaging
from gradcomp.exchange.memory import Residual
from gradcomp.exchange.patterns.base import Context, Member
from gradcomp.exchange.patterns.gather import Gather
from gradcomp.exchange.rounds import BucketRound, TensorKey
from gradcomp.stopwatch import timed

__all__ = ["DeMo"]

_TINY = np.float32(2.0**-120)  # too little to change another number
_LEAST = np.float32(2.0**-100)


class DeMo(OptimizerStep):
    """Steps of the optimizer DeMo.

    1. ``m = beta m + R gradient`` on each rank, with beta for ``momentum`` and R for the rotation.
    2. ``q`` = the ``k`` largest coefficients of each block of m, as decoded; all-gathered.
    3. ``m = m - q`` on each rank, with its own q.
    4. ``Q[i]`` = the mean of ``q[i]`` over the ranks that sent coefficient i; 0 if none did.
    5. ``step = sign(R^-1 Q)``; ``update=plain``: ``R^-1 Q``. The sign of 0 is random where a block has
       other elements: values of one bit often sum to exactly 0. A block of zeros stays 0.

    Values of one bit cannot be 0. Coefficients of 0 therefore get random numbers of about 2^-120 first,
    each rank its own, and travel with a random sign. Averages below 2^-100 then count as 0.

    Deviation from the paper: R is a random rotation in blocks of 4096 elements, not a discrete cosine
    transform, and m has the gradient without the learning rate.

    State, by tensor name: ``momentum``, m, rotated.
    """

    exchange: ClassVar[str] = (
        "the largest coefficients of the rotated momentum are all-gathered; vectors travel dense"
    )
    momentum_of: ClassVar[str] = "demo"

    def __init__(self, spec: Spec, context: Context) -> None:
        super().__init__(spec, context)
        params = self._params
        self._sign = params["update"] == "sign"
        self._one_bit = params["values"] in ("sign", "means")
        self._seed = context.seed
        self._gather = Gather(
            get_codec(f"blocktopk(k={params['k']},values={params['values']})"),
            Residual(params["momentum"], 1.0, self._momenta),
            context.seed,
            context.rank,
            averaging=Averaging("senders"),
        )

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        averages = yield from self._gather.bucket_round(name, [self._rotated(m) for m in members])
        for member, average in zip(members, averages, strict=True):
            self._turn_back(average, member.key)
            if self._sign:
                self._take_signs(
                    average, derive_stream(self._seed, member.step, member.key.tensor_id)
                )
        return averages

    @timed("compensate")
    def _rotated(self, member: Member) -> Member:
        """The rotated gradient as a vector; its tiles are then the rotation's blocks."""
        key = TensorKey(member.key.name, (member.key.numel,), member.key.numel)
        _core.rotate(member.grad.reshape(-1), _stream(key), member.out)
        if self._one_bit:
            zeros = np.flatnonzero(member.out == 0)
            draws = derive_stream(self._gather.seed, member.step, key.tensor_id)
            member.out[zeros] = _TINY * _core.uniform_signed(draws, zeros.size)
        return member._replace(aggregator=self._gather, grad=member.out, key=key)

    @timed("decode")
    def _turn_back(self, average: FloatArray, key: TensorKey) -> None:
        _core.rotate_back(average, _stream(key))
        if self._one_bit:
            average[np.abs(average) < _LEAST] = 0  # all that the ranks sent were zeros
        finite = np.isfinite(average)
        if not finite.all():
            average[~finite] = np.nan  # an Inf has a sign

    @timed("decode")
    def _take_signs(self, average: FloatArray, stream: int) -> None:
        """Replace an average by its signs; ``stream`` decides ties, equally on all ranks."""
        np.sign(average, out=average)
        ties = _ties(average)
        draws = _core.uniform_signed(stream, ties.size)
        average[ties] = np.where(draws >= 0, np.float32(1), np.float32(-1))


def _ties(signs: FloatArray) -> npt.NDArray[np.intp]:
    """Indices of zeros in blocks of the rotation that have other elements; the last may be longer."""
    zeros = np.flatnonzero(signs == 0)
    if zeros.size == 0:
        return zeros
    block = 1 << _core.rotation_of(signs.size)[0]
    blocks = signs.size // block
    moving = np.logical_or.reduceat(signs != 0, np.arange(blocks) * block)
    return zeros[moving[np.minimum(zeros // block, blocks - 1)]]


def _stream(key: TensorKey) -> int:
    """The rotation's random signs; the same for every seed, so that m fits after a resume."""
    return derive_stream(0, 0, key.tensor_id)
