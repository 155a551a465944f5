"""Dense inside a node, any exchange pattern between nodes: volume grows with nodes, not ranks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.errors import WireError
from gradcomp.exchange.nodes import Node
from gradcomp.exchange.patterns.base import Aggregator, BucketAggregator, Member
from gradcomp.exchange.patterns.dense import dense_bucket
from gradcomp.exchange.rounds import (
    AllGather,
    AllReduce,
    Broadcast,
    BucketRound,
    Ready,
    Request,
    Round,
    TensorKey,
    advance,
)

__all__ = ["TwoLevel", "TwoLevelBucket", "two_level"]

_Result = TypeVar("_Result")

# The type of the sizes that precede the parts of a packed reply.
_SIZE = np.dtype("<u8")


def two_level(between: Aggregator, node: Node) -> Aggregator:
    """The aggregator that averages inside nodes first.

    Args:
        between: the aggregator between nodes, made with `Context.of_nodes`.
        node: this rank's place.
    """
    if isinstance(between, BucketAggregator):
        return TwoLevelBucket(between, node)
    return TwoLevel(between, node)


class TwoLevel(Aggregator):
    """Averages dense gradients inside each node; then each node acts as one rank.

    All ranks of a node run the round between nodes with the same average, so their memories are
    equal: they belong to the node. Only the node's first rank takes part in that round's requests;
    it broadcasts the replies inside the node.
    """

    def __init__(self, between: Aggregator, node: Node) -> None:
        self._between = between
        self._node = node

    def takes(self, shape: tuple[int, ...]) -> bool:
        """As the pattern between nodes."""
        return self._between.takes(shape)

    def round(self, grad: FloatArray, key: TensorKey, step: int, out: FloatArray) -> Round:
        """See `Aggregator.round`."""
        average = yield AllReduce(f"{key.name}.node", grad.reshape(-1), "node")
        inner = self._between.round(average.reshape(key.shape), key, step, out)
        return (yield from _between_nodes(inner, self._node))


class TwoLevelBucket(BucketAggregator):
    """As `TwoLevel`, around a `BucketAggregator`."""

    def __init__(self, between: BucketAggregator, node: Node) -> None:
        self.bucket = (TwoLevelBucket, between.bucket)
        self.start_step = between.start_step
        self._between = between
        self._node = node

    def takes(self, shape: tuple[int, ...]) -> bool:
        """As the pattern between nodes."""
        return self._between.takes(shape)

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        averages = yield from dense_bucket(f"{name}.node", members, "node")
        inner = []
        for average, member in zip(averages, members, strict=True):
            assert isinstance(member.aggregator, TwoLevelBucket)  # ensured by `bucket`
            inner.append(
                member._replace(
                    aggregator=member.aggregator._between,
                    grad=average.reshape(member.key.shape),
                )
            )
        return (yield from _between_nodes(self._between.bucket_round(name, inner), self._node))


def _between_nodes(
    inner: Generator[Request | Ready, Any, _Result], node: Node
) -> Generator[Request, Any, _Result]:
    """Run a round in which each node is one rank."""
    try:
        request = advance(inner, None)
        while True:
            if node.count == 1:
                request = advance(inner, _single_rank_reply(request))
                continue
            reply = yield replace(request, group="leaders")
            data = _packed(request, reply) if node.leads else np.empty(0, np.uint8)
            data = yield Broadcast(f"{request.name}.back", data, "node")
            request = advance(inner, _unpacked(request, data, node.count))
    except StopIteration as stop:
        result: _Result = stop.value
        return result
    except WireError as error:
        raise WireError(f"between nodes, each of them a rank: {error}") from error


def _single_rank_reply(request: Request) -> Any:
    """The reply in a world of one rank."""
    if isinstance(request, AllReduce):
        return request.array
    return [request.frame if isinstance(request, AllGather) else request.data]


def _packed(request: Request, reply: Any) -> ByteArray:
    """A reply as bytes."""
    if isinstance(request, AllReduce):
        array: ByteArray = reply.view(np.uint8)
        return array
    sizes = np.array([part.size for part in reply], _SIZE)
    return np.concatenate([sizes.view(np.uint8), *reply])


def _unpacked(request: Request, data: ByteArray, count: int) -> Any:
    """The reply that `_packed` was given; ``count`` is its number of parts."""
    if isinstance(request, AllReduce):
        if data.size != request.array.nbytes:
            raise WireError(
                f"the first rank of the node sent {data.size} bytes for '{request.name}', "
                f"not {request.array.nbytes}"
            )
        return data.view(request.array.dtype).reshape(request.array.shape)
    begin = count * _SIZE.itemsize
    sizes = [int(size) for size in data[:begin].view(_SIZE)] if data.size >= begin else []
    if len(sizes) != count or sum(sizes) != data.size - begin:
        raise WireError(
            f"the reply for '{request.name}' from the first rank of the node is damaged: its sizes "
            f"do not add up to {data.size} bytes"
        )
    return np.split(data[begin:], np.cumsum(sizes)[:-1])
