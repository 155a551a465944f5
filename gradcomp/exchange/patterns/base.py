"""Base classes of aggregators: exchange patterns and algorithms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray, room
from gradcomp.codec.devices import HOST, Device, device_of
from gradcomp.exchange.memory import MemoryState
from gradcomp.exchange.nodes import Node
from gradcomp.exchange.rates import Rates
from gradcomp.exchange.rounds import BucketRound, Round, TensorKey

__all__ = ["Aggregator", "BucketAggregator", "Context", "Member"]


class Context(NamedTuple):
    """The parts of a rank that all its aggregators share.

    Attributes:
        state: arrays that aggregators keep from step to step, by kind.
        seed: of the job's random numbers; the same on every rank.
        rank: this rank, in [0, world_size).
        world_size: number of ranks that average together.
        ranks_per_node: number of consecutive ranks in each node.
        rates: the present learning rates; None: unknown.
        scatters: each rank gets sums of its own rows alone, as in a reduce-scatter.
        peer_device: the device from which messages of its codecs travel to the devices of other
            ranks; None: there is none.
        elastic: ranks come and go; see `Alone`.
    """

    state: MemoryState
    seed: int
    rank: int
    world_size: int
    ranks_per_node: int = 1
    rates: Rates | None = None
    scatters: bool = False
    peer_device: Device | None = None
    elastic: bool = False

    @property
    def node(self) -> Node:
        """This rank's place among the nodes."""
        return Node.of(self.rank, self.world_size, self.ranks_per_node)

    def of_nodes(self) -> Context:
        """The context of an exchange between nodes, in which each node is one rank."""
        node = self.node
        return self._replace(
            rank=node.index, world_size=node.count, ranks_per_node=1, peer_device=None
        )


class Aggregator(ABC):
    """One exchange pattern with its codec and memory, for any number of tensors."""

    linear = False
    """The round is a single `AllReduce`, and its reply may be scaled. So an engine may use its own
    all-reduce for the request (and fuse it with others), and may sum instead of averaging."""

    on_devices = False
    """Rounds take gradients in the memory of other devices than the host."""

    on_peer_devices = False
    """Rounds take gradients in the memory of a `PeerDevice`."""

    start_step = 0
    """The first step, counted from 0, in which tensors do not travel dense."""

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether this aggregator averages tensors of this shape; other tensors travel dense."""
        return True

    @abstractmethod
    def round(self, grad: FloatArray, key: TensorKey, step: int, out: FloatArray) -> Round:
        """Average one tensor over the ranks.

        Args:
            grad: this rank's gradient, C-contiguous float32 of the tensor's shape; read before the
                first request is yielded.
            key: the tensor.
            step: number of earlier averages of this tensor; the same on every rank.
            out: memory for the average, as `Member` has it; not all aggregators use it.

        Returns:
            A generator that returns the average, flat float32.
        """


class BucketAggregator(Aggregator):
    """An aggregator that can average several tensors in one round."""

    bucket: Hashable
    """Tensors may share a `bucket_round` if their aggregators have equal values of ``bucket``."""

    def round(self, grad: FloatArray, key: TensorKey, step: int, out: FloatArray) -> Round:
        """See `Aggregator.round`: a bucket of one tensor."""
        member = Member(self, grad, key, step, out)
        (average,) = yield from self.bucket_round(key.name, [member])
        return average

    @abstractmethod
    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """Average several tensors together.

        Args:
            name: prefix of the names of the round's requests. The name, and the members' order,
                keys and steps are the same on every rank.
            members: the tensors; their aggregators have equal values of `bucket`.

        Returns:
            A generator that returns the averages in the members' order, flat float32.
        """


class Member(NamedTuple):
    """One tensor of a bucket, with the arguments of its aggregator's `round`.

    Attributes:
        grad: its device is where the round works; see `Aggregator.on_devices`.
        out: flat float32 memory for the average, of any content, on the gradient's device. It may be
            the gradient's own memory, so write to it only after the gradient is encoded.
    """

    aggregator: BucketAggregator
    grad: FloatArray
    key: TensorKey
    step: int
    out: FloatArray

    def zeros(self) -> FloatArray:
        """`out`, which must be on the host, filled with zeros."""
        _core.zero(self.out)
        return self.out

    def on_host(self) -> Member:
        """The tensor with its arrays on the host, for a bucket with tensors on several devices."""
        device = device_of(self.grad)
        if device is HOST:
            return self
        return self._replace(grad=device.to_host(self.grad), out=room(self.key.numel))
