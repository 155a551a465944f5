"""Rounds: the requests of one tensor's aggregation to the network, as a generator.

A round yields requests and is resumed with the replies; it returns the average gradient. It knows
no engine, so one algorithm serves Horovod, torch.distributed, the loopback and the tests. Request
names are the same on every rank, and neither their number nor their order depends on local data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Literal, TypeAlias

import numpy.typing as npt

from gradcomp.codec.arrays import ByteArray, FloatArray

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "BucketRound",
    "Exchange",
    "GossipRound",
    "RankGroup",
    "Ready",
    "Request",
    "Round",
    "TensorKey",
    "advance",
]

RankGroup: TypeAlias = Literal["all", "node", "leaders"]
"""The ranks that exchange: all, the ranks of each node among themselves, or each node's first rank.

A rank outside the group makes the request, too, and gets None at once.
"""


@dataclass(frozen=True)
class AllReduce:
    """Average an array over the ranks of a group. Reply: the average, of the same dtype and shape.

    With ``overwrite`` the reply may be the array itself: the round no longer needs its elements. With
    ``alone`` engines do not let it wait for other requests.

    The sum is formed in the array's own dtype. Engines multiply numbers by their `headroom` before the
    sum, so that a sum of finite float16 is finite.
    """

    kind: ClassVar[str] = "allreduce"
    name: str
    array: npt.NDArray[Any]
    group: RankGroup = "all"
    overwrite: bool = False
    alone: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that this rank contributes."""
        return self.array.nbytes

    @staticmethod
    def headroom(dtype: object, ranks: int) -> float:
        """The factor of each rank's numbers before they are added, so that no float16 sum overflows.

        The average is the sum of ``headroom * x``, times ``1 / (headroom * ranks)``. A power of two keeps
        all bits of a float16 but those of elements below ``2**-14 / headroom``.

        Args:
            dtype: of numpy or PyTorch.
            ranks: number of summands, at least 1.

        Returns:
            For float16 the largest power of two up to ``1 / ranks``; 1 for other dtypes.
        """
        half = str(dtype) in ("float16", "torch.float16")
        return 0.5 ** (ranks - 1).bit_length() if half else 1.0


@dataclass(frozen=True)
class AllGather:
    """Give every rank all ranks' frames. Reply: the frames in rank order, as a list.

    As with the other requests, only the ranks of the group take part.

    ``frame`` holds ``count`` frames, one after the other. If ranks send different numbers of
    frames, ``count`` lists the numbers in rank order.

    ``frame`` may be what `gradcomp.codec.devices.PeerDevice.begin_messages` gives, with an engine that
    replies with such messages. The same holds for the arrays of the other requests.
    """

    kind: ClassVar[str] = "allgather"
    name: str
    frame: ByteArray
    count: int | Sequence[int] = 1
    group: RankGroup = "all"

    @property
    def nbytes(self) -> int:
        """Bytes that this rank contributes."""
        return self.frame.nbytes


@dataclass(frozen=True)
class AllToAll:
    """Send a separate part to every rank. Reply: the part from each rank, in rank order.

    ``data`` holds the parts for all ranks in rank order; ``splits`` their sizes in bytes. ``unused``
    are the bytes of the own part, if it says no more than how large the others' parts are.
    """

    kind: ClassVar[str] = "alltoall"
    name: str
    data: ByteArray
    splits: Sequence[int]
    group: RankGroup = "all"
    unused: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that this rank contributes, its own part included if it is used."""
        return self.data.nbytes - self.unused


@dataclass(frozen=True)
class Broadcast:
    """Give every rank the bytes of one rank. Reply: these bytes.

    ``data`` is empty on the other ranks, which need not know the size. If several ranks give bytes,
    the reply has them one after the other in rank order. Ranks need the same order of broadcasts only
    among themselves, whatever other requests are under way.
    """

    kind: ClassVar[str] = "broadcast"
    name: str
    data: ByteArray
    group: RankGroup = "all"

    @property
    def nbytes(self) -> int:
        """Bytes that this rank contributes."""
        return self.data.nbytes


@dataclass(frozen=True)
class Exchange:
    """Gossip: send bytes to some ranks and receive from some. Reply: received bytes by sender.

    Attributes:
        name: the request's name, for error messages.
        messages: the bytes for each receiver.
        sources: the ranks that send to this rank.
        nbytes: size in bytes of each message from the sources; with ``varies`` the largest one.
        varies: whether sizes differ by rank or round, so that an engine sends them first.
    """

    name: str
    messages: Mapping[int, ByteArray]
    sources: Sequence[int]
    nbytes: int
    varies: bool = False


@dataclass(frozen=True)
class Ready:
    """No exchange: a device of this rank works for the round. Reply: the result of ``wait``.

    Only rounds with arrays of a device make it, so other ranks may run the round without it. Engines
    never see it.
    """

    name: str
    wait: Callable[[], Any]


Request: TypeAlias = AllReduce | AllGather | AllToAll | Broadcast
Round: TypeAlias = Generator[Request | Ready, Any, FloatArray]
BucketRound: TypeAlias = Generator[Request | Ready, Any, list[FloatArray]]
"""A round of several tensors at once; it returns their averages."""


GossipRound: TypeAlias = Generator[Exchange, Mapping[int, ByteArray], None]
"""A round between peers. It changes the rank's own values in place; no rank learns the average."""


@dataclass(frozen=True)
class TensorKey:
    """The identity of a tensor in a round.

    Attributes:
        name: unique, and the same on every rank.
        shape: the tensor's shape, the same on every rank.
        numel: number of elements.
    """

    name: str
    shape: tuple[int, ...]
    numel: int

    @property
    def cols(self) -> int:
        """Elements in a row of the matrix [shape[0], rest]; 1 for a vector."""
        return math.prod(self.shape[1:])

    @cached_property
    def tensor_id(self) -> int:
        """A 64-bit digest of the name, for seeded codecs."""
        return int.from_bytes(blake2b(self.name.encode(), digest_size=8).digest(), "little")


def advance(round_: Generator[Request | Ready, Any, Any], reply: Any) -> Request:
    """Resume a round with a reply; returns its next request, when its device is ready.

    Raises:
        StopIteration: the round has ended; ``value`` is its result.
    """
    request = round_.send(reply)
    while isinstance(request, Ready):
        request = round_.send(request.wait())
    return request
