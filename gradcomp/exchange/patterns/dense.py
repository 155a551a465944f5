"""No compression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradcomp.codec.arrays import FloatArray, split
from gradcomp.exchange.patterns.base import Aggregator, Member
from gradcomp.exchange.rounds import AllReduce, BucketRound, RankGroup, Round, TensorKey

__all__ = ["Dense", "dense_bucket"]


class Dense(Aggregator):
    """The gradient itself is averaged, without a copy."""

    linear = True

    def round(self, grad: FloatArray, key: TensorKey, step: int, out: FloatArray) -> Round:
        """See `Aggregator.round`."""
        average: FloatArray = yield AllReduce(key.name, grad.reshape(-1))
        return average


def dense_bucket(name: str, members: Sequence[Member], group: RankGroup = "all") -> BucketRound:
    """Average the gradients without compression, in one request; they must not be empty."""
    if len(members) == 1:
        average: FloatArray = yield AllReduce(name, members[0].grad.reshape(-1), group)
        return [average]
    together = np.concatenate([member.grad.reshape(-1) for member in members])
    average = yield AllReduce(name, together, group)
    return split(average, [member.key.numel for member in members])
