"""Base classes of aggregators: exchange patterns and algorithms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.memory import MemoryState
from gradcomp.exchange.nodes import Node
from gradcomp.exchange.rounds import BucketRound, Round, TensorKey

__all__ = ["Aggregator", "BucketAggregator", "Context", "Member"]


class Context(NamedTuple):
    """The parts of a rank that all its aggregators share.

    Attributes:
        state: arrays that they keep from step to step, by kind.
        seed: of the job's random numbers; the same on every rank.
        rank: this rank, in [0, world_size).
        world_size: number of ranks that average together.
        ranks_per_node: number of consecutive ranks in each node.
    """

    state: MemoryState
    seed: int
    rank: int
    world_size: int
    ranks_per_node: int = 1

    @property
    def node(self) -> Node:
        """Where this rank is."""
        return Node.of(self.rank, self.world_size, self.ranks_per_node)

    def of_nodes(self) -> Context:
        """For an exchange in which nodes are the ranks."""
        node = self.node
        return self._replace(rank=node.index, world_size=node.count, ranks_per_node=1)


class Aggregator(ABC):
    """One exchange pattern with its codec and memory, for any number of tensors."""

    linear = False
    """The round is a single `AllReduce` whose reply may be scaled: an engine may leave the request
    to its own all-reduce (and fuse it with others), and may sum instead of averaging."""

    start_step = 0
    """The first step in which tensors do not travel dense."""

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether it averages tensors of this shape; others travel dense."""
        return True

    @abstractmethod
    def round(self, grad: FloatArray, key: TensorKey, step: int) -> Round:
        """Average one tensor over the ranks.

        Args:
            grad: this rank's gradient, C-contiguous; read before the first request is yielded.
            key: which tensor.
            step: how often this tensor has been averaged before; the same on every rank.

        Returns:
            A generator that returns the average, flat float32.
        """


class BucketAggregator(Aggregator):
    """One whose tensors may travel together."""

    bucket: Hashable
    """Tensors whose aggregators have an equal one may share a `bucket_round`."""

    def round(self, grad: FloatArray, key: TensorKey, step: int) -> Round:
        """See `Aggregator.round`: a bucket of one tensor."""
        member = Member(self, grad, key, step, np.empty(key.numel, np.float32))
        (average,) = yield from self.bucket_round(key.name, [member])
        return average

    @abstractmethod
    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """Average several tensors together.

        Args:
            name: prefix of the names of its requests; the same on every rank, as are the members'
                order, keys and steps.
            members: tensors whose aggregators have the same `bucket`.

        Returns:
            A generator that returns the averages in the members' order, flat float32.
        """


class Member(NamedTuple):
    """One tensor of a bucket, with the arguments of its aggregator's `round`.

    Attributes:
        out: flat memory for the average, with anything in it. It may be the gradient's own, so
            write only once the gradient is encoded.
    """

    aggregator: BucketAggregator
    grad: FloatArray
    key: TensorKey
    step: int
    out: FloatArray

    def zeros(self) -> FloatArray:
        """`out`, filled with zeros."""
        _core.zero(self.out)
        return self.out
