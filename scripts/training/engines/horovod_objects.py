"""Values between ranks of Horovod as bytes, instead of its functions that use pickle."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from training.engines.base import Engine
from training.engines.objects import check_length, pack, unpack

__all__ = ["HorovodObjects"]

Bytes = npt.NDArray[np.uint8]


class HorovodObjects(Engine):
    """The part of an engine that the frameworks of Horovod share."""

    @abstractmethod
    def _allgather(self, data: Bytes, name: str) -> Bytes:
        """The bytes of all ranks, in rank order; their numbers may differ."""

    @abstractmethod
    def _broadcast(self, data: Bytes, name: str) -> Bytes:
        """The bytes of rank 0; every rank gives as many."""

    def allgather_object(self, value: Any, name: str) -> list[Any]:
        """See `Engine`."""
        packed = pack(value)
        lengths = self._allgather(_as_bytes(len(packed)), f"{name}.length").view(np.int64)
        for rank, length in enumerate(lengths):
            check_length(int(length), len(packed), rank)
        data = self._allgather(np.frombuffer(packed, np.uint8), name)
        parts = np.split(data, np.cumsum(lengths)[:-1])
        return [unpack(part.tobytes(), rank) for rank, part in enumerate(parts)]

    def broadcast_object(self, value: Any, name: str) -> Any:
        """See `Engine`."""
        packed = pack(value)
        length = int(self._broadcast(_as_bytes(len(packed)), f"{name}.length").view(np.int64)[0])
        check_length(length, len(packed), 0)
        mine = np.frombuffer(packed, np.uint8) if self.rank() == 0 else np.zeros(length, np.uint8)
        return unpack(self._broadcast(mine, name).tobytes(), 0)


def _as_bytes(number: int) -> Bytes:
    return np.array([number], np.int64).view(np.uint8)
