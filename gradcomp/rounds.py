"""Rounds: what one tensor's aggregation asks of the network, as a generator.

A round yields requests and is resumed with the replies; it returns the average gradient. It knows
no engine, so one algorithm serves Horovod, torch.distributed, the loopback and the tests. Request
names are the same on every rank, and neither their number nor their order depends on local data.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, TypeAlias

import numpy.typing as npt

from gradcomp.arrays import ByteArray, FloatArray

__all__ = ["AllGather", "AllReduce", "AllToAll", "BucketRound", "Request", "Round", "TensorKey"]


@dataclass(frozen=True)
class AllReduce:
    """Average an array over the ranks. Reply: the average, of the same dtype and shape.

    The sum is formed in the array's own dtype. For float16 it may overflow to Inf, as in every
    engine that adds half precision.
    """

    kind: ClassVar[str] = "allreduce"
    name: str
    array: npt.NDArray[Any]

    @property
    def nbytes(self) -> int:
        """Bytes that this rank contributes."""
        return self.array.nbytes


@dataclass(frozen=True)
class AllGather:
    """Give every rank all ranks' frames. Reply: what each rank gave, as a list in rank order.

    ``frame`` holds ``count`` frames, one after the other; where ranks give different numbers of
    them, ``count`` lists these in rank order.
    """

    kind: ClassVar[str] = "allgather"
    name: str
    frame: ByteArray
    count: int | Sequence[int] = 1

    @property
    def nbytes(self) -> int:
        """Bytes that this rank contributes."""
        return self.frame.nbytes


@dataclass(frozen=True)
class AllToAll:
    """Give every rank bytes of its own. Reply: what each rank gave to this one, in rank order.

    ``data`` holds what each rank gets, one after the other; ``splits`` the number of bytes of each.
    """

    kind: ClassVar[str] = "alltoall"
    name: str
    data: ByteArray
    splits: Sequence[int]

    @property
    def nbytes(self) -> int:
        """Bytes that this rank contributes, those for itself included."""
        return self.data.nbytes


Request: TypeAlias = AllReduce | AllGather | AllToAll
Round: TypeAlias = Generator[Request, Any, FloatArray]
BucketRound: TypeAlias = Generator[Request, Any, list[FloatArray]]
"""A round of several tensors at once; it returns their averages."""


@dataclass(frozen=True)
class TensorKey:
    """Which tensor a round is about.

    Attributes:
        name: unique, and the same on every rank.
        shape: its shape; all ranks have the same.
        numel: its number of elements.
    """

    name: str
    shape: tuple[int, ...]
    numel: int

    @cached_property
    def tensor_id(self) -> int:
        """A 64-bit digest of the name, for seeded codecs."""
        return int.from_bytes(blake2b(self.name.encode(), digest_size=8).digest(), "little")
