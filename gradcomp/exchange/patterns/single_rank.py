"""Averages of a rank that is alone for a while."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.estimates import Estimates
from gradcomp.exchange.memory import Residual
from gradcomp.exchange.patterns.base import Aggregator, BucketAggregator, Member
from gradcomp.exchange.rounds import BucketRound

__all__ = ["Alone"]


class Alone(BucketAggregator):
    """Sends nothing: the average is the corrected gradient, exactly, and nothing stays unsent.

    For specs with error feedback in jobs where ranks come and go. Other state, such as PowerSGD's
    factors, stays as it is until other ranks come.

    Args:
        memory: of the spec.
        others: the aggregator that averages with other ranks.
    """

    def __init__(self, memory: Residual | Estimates, others: Aggregator) -> None:
        self.bucket = Alone
        self._memory = memory
        self._others = others

    def takes(self, shape: tuple[int, ...]) -> bool:
        """See `Aggregator.takes`."""
        return self._others.takes(shape)

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`; without any request."""
        yield from ()
        return [_average(member) for member in members]


def _average(member: Member) -> FloatArray:
    alone = member.aggregator
    assert isinstance(alone, Alone)  # ensured by `bucket`
    average = alone._memory.release(member.grad, member.key)
    if not np.may_share_memory(average, member.grad):
        return average
    # A caller that may not overwrite gradients must not get one as its average, either.
    if not np.may_share_memory(average, member.out):
        np.copyto(member.out, average)
    return member.out
