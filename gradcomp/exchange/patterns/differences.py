"""Rounds of differences (EF21): any pattern averages them, and they are added to the last result."""

from __future__ import annotations

from collections.abc import Sequence

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.batch import advance_batch, differ_batch
from gradcomp.exchange.estimates import Estimates
from gradcomp.exchange.memory import ESTIMATE_MEAN, MemoryState, array_of
from gradcomp.exchange.patterns.base import Aggregator, BucketAggregator, Member
from gradcomp.exchange.patterns.dense import dense_bucket
from gradcomp.exchange.rounds import BucketRound, Round, TensorKey

__all__ = ["AverageMomentum", "Differences", "DifferencesBucket"]


class Differences(Aggregator):
    """Averages the differences of gradients to their estimates; see `Estimates`.

    Args:
        estimates: of this rank.
        inner: averages differences.
    """

    def __init__(self, estimates: Estimates, inner: Aggregator) -> None:
        self._estimates = estimates
        self._inner = inner

    def takes(self, shape: tuple[int, ...]) -> bool:
        """As the pattern of the differences."""
        return self._inner.takes(shape)

    def round(self, grad: FloatArray, key: TensorKey, step: int, out: FloatArray) -> Round:
        """See `Aggregator.round`."""
        estimates = self._estimates
        item = estimates.differ(grad, key)
        differ_batch([item])
        estimates.differed(item)
        average = yield from self._inner.round(item.difference.reshape(key.shape), key, step, out)
        advanced = estimates.advance(key, item, average, out)
        advance_batch([advanced])
        return advanced.out


class DifferencesBucket(BucketAggregator):
    """As `Differences`, around a `BucketAggregator`."""

    def __init__(self, estimates: Estimates, inner: BucketAggregator) -> None:
        self.bucket = (DifferencesBucket, inner.bucket)
        self.on_devices = inner.on_devices
        self.on_peer_devices = inner.on_peer_devices
        self._estimates = estimates
        self._inner = inner

    def takes(self, shape: tuple[int, ...]) -> bool:
        """As the pattern of the differences."""
        return self._inner.takes(shape)

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        aggregators = [_checked(member) for member in members]
        items = [
            aggregator._estimates.differ(member.grad, member.key)
            for aggregator, member in zip(aggregators, members, strict=True)
        ]
        differ_batch(items)
        inner = []
        for aggregator, member, item in zip(aggregators, members, items, strict=True):
            aggregator._estimates.differed(item)
            difference = item.difference.reshape(member.key.shape)
            inner.append(member._replace(aggregator=aggregator._inner, grad=difference))
        averages = yield from self._inner.bucket_round(name, inner)
        advanced = [
            aggregator._estimates.advance(member.key, item, average, member.out)
            for aggregator, member, item, average in zip(
                aggregators, members, items, averages, strict=True
            )
        ]
        advance_batch(advanced)
        return [item.out for item in advanced]


class AverageMomentum(BucketAggregator):
    """EF21-SGDM without compression: the moving average of the averages, the same on every rank.

    Args:
        momentum: weight of the past, above 0.
        state: arrays by kind.
    """

    def __init__(self, momentum: float, state: MemoryState) -> None:
        self.bucket = AverageMomentum
        self._momentum = momentum
        self._means = state.setdefault(ESTIMATE_MEAN, {})
        self._own = [state.setdefault(kind, {}) for kind in ("momentum", "estimate")]

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        averages = yield from dense_bucket(name, members)
        for member, average in zip(members, averages, strict=True):
            assert isinstance(member.aggregator, AverageMomentum)  # ensured by `bucket`
            member.aggregator._advance(member, average)
        return [member.out for member in members]

    def _advance(self, member: Member, average: FloatArray) -> None:
        key = member.key
        for arrays in self._own:  # of steps with compression
            arrays.pop(key.name, None)
        first = key.name not in self._means
        mean = array_of(self._means, key, ESTIMATE_MEAN)
        finite = _core.update_average(mean, average, self._momentum, first)
        member.out[:] = mean
        if not finite:
            _core.zero_nonfinite(mean)


def _checked(member: Member) -> DifferencesBucket:
    assert isinstance(member.aggregator, DifferencesBucket)  # ensured by `bucket`
    return member.aggregator
