"""Clipping by the norm of all ranks' gradients of a tensor, before any exchange pattern."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.patterns.base import Aggregator, BucketAggregator, Member
from gradcomp.exchange.rounds import AllReduce, BucketRound, Request, Round, TensorKey

__all__ = ["JointClip", "JointClipBucket", "joint_clip"]


def joint_clip(inner: Aggregator, limit: float) -> Aggregator:
    """The aggregator that clips gradients before an exchange pattern gets them.

    The norm of a tensor is the root of the mean, over the ranks, of its squared L2 norms; above ``limit``
    all ranks scale their gradients by the same factor.

    Args:
        limit: largest norm.
    """
    if isinstance(inner, BucketAggregator):
        return JointClipBucket(inner, limit)
    return JointClip(inner, limit)


class JointClip(Aggregator):
    """See `joint_clip`."""

    def __init__(self, inner: Aggregator, limit: float) -> None:
        self._inner = inner
        self._limit = limit

    def round(self, grad: FloatArray, key: TensorKey, step: int, out: FloatArray) -> Round:
        """See `Aggregator.round`."""
        yield from _clip(key.name, [grad], [out], [self._limit])
        return (yield from self._inner.round(out.reshape(key.shape), key, step, out))


class JointClipBucket(BucketAggregator):
    """As `JointClip`, around a `BucketAggregator`: the norms of a bucket travel in one request."""

    def __init__(self, inner: BucketAggregator, limit: float) -> None:
        self.bucket = (JointClipBucket, inner.bucket)
        self._inner = inner
        self._limit = limit

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        aggregators = [_checked(member) for member in members]
        yield from _clip(
            name,
            [member.grad for member in members],
            [member.out for member in members],
            [aggregator._limit for aggregator in aggregators],
        )
        inner = [
            member._replace(aggregator=clip._inner, grad=member.out.reshape(member.key.shape))
            for member, clip in zip(members, aggregators, strict=True)
        ]
        return (yield from self._inner.bucket_round(name, inner))


def _clip(
    name: str, grads: Sequence[FloatArray], outs: Sequence[FloatArray], limits: Sequence[float]
) -> Generator[Request, Any, None]:
    """Write the clipped gradients to ``outs``, which may be their own memory.

    As for a rank's own norm, a norm that is not finite scales nothing.
    """
    for grad, out in zip(grads, outs, strict=True):
        if not np.shares_memory(grad, out):
            out[:] = grad.reshape(-1)
    squares = np.array([_core.l2_norm(out) ** 2 for out in outs], np.float64)
    means = yield AllReduce(f"{name}.norms", squares)
    for out, mean, limit in zip(outs, means, limits, strict=True):
        norm = math.sqrt(mean)
        if limit < norm < math.inf:
            out *= np.float32(limit / norm)


def _checked(member: Member) -> JointClipBucket:
    assert isinstance(member.aggregator, JointClipBucket)  # ensured by `bucket`
    return member.aggregator
