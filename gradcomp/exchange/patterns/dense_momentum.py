"""Dense tensors with momentum correction (DGC): each rank applies the momentum itself."""

from __future__ import annotations

from collections.abc import Sequence

from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.momentum import MomentumCorrection
from gradcomp.exchange.patterns.base import BucketAggregator, Member
from gradcomp.exchange.patterns.dense import dense_bucket
from gradcomp.exchange.rounds import BucketRound

__all__ = ["DenseMomentum"]


class DenseMomentum(BucketAggregator):
    """Gradients are averaged, and the momentum is applied to the average, the same on every rank.

    As in the authors' code of Deep Gradient Compression, for tensors too small for sparsification,
    such as biases. If a tensor was compressed before, its velocities and momenta are averaged over
    the ranks once, with its gradient. The average velocity is applied, and the momentum continues
    from its average.
    """

    def __init__(self, memory: MomentumCorrection) -> None:
        self.bucket = self
        self._memory = memory

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        memory = self._memory
        settling = [
            member._replace(grad=array)
            for member in members
            for array in memory.unsettled(member.key) or ()
        ]
        averages = yield from dense_bucket(name, [*members, *settling])
        late = dict[str, FloatArray]()
        rest = averages[len(members) :]
        for member, velocity, momentum in zip(settling[::2], rest[::2], rest[1::2], strict=True):
            memory.settle(member.key, momentum.copy())
            late[member.key.name] = velocity
        steps = []
        for member, average in zip(members, averages, strict=False):
            step = memory.of_average(average, member.key)
            if member.key.name in late:
                step += late[member.key.name]
            steps.append(step)
        return steps
