"""Dense tensors where each rank applies the momentum itself (DGC)."""

from __future__ import annotations

from collections.abc import Sequence

from gradcomp.aggregators.base import BucketAggregator, Member
from gradcomp.aggregators.dense import dense_bucket
from gradcomp.memory import MomentumCorrection
from gradcomp.rounds import BucketRound

__all__ = ["DenseMomentum"]


class DenseMomentum(BucketAggregator):
    """Gradients are averaged, and the momentum is applied to the average, the same on every rank.

    As in the authors' code of Deep Gradient Compression, for tensors that are not worth choosing
    from, such as biases.
    """

    def __init__(self, memory: MomentumCorrection) -> None:
        self.bucket = self
        self._memory = memory

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        averages = yield from dense_bucket(name, members)
        return [
            self._memory.of_average(average, member.key)
            for average, member in zip(averages, members, strict=True)
        ]
