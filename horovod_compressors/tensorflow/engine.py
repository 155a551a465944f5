"""Horovod's collectives for TensorFlow, as an engine for rounds."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from gradcomp.adapter_api import (
    AllGather,
    AllReduce,
    AllToAll,
    RankGroup,
    Request,
    split_frames,
)
from horovod_compressors.tensorflow.collectives import start

__all__ = ["HorovodEngine"]


class HorovodEngine:
    """Asynchronous collectives of arrays.

    Args:
        prefix: prefix of the collectives' names; the same on every rank.
        process_sets: the process set of each group that this rank is in.
    """

    def __init__(self, prefix: str, process_sets: Mapping[RankGroup, Any]) -> None:
        self._prefix = prefix
        self._process_sets = process_sets

    def start(self, request: Request) -> tuple[Request, Future[Any]] | None:
        """Start a request without waiting, unless this rank is outside its group."""
        process_set = self._process_sets.get(request.group)
        if process_set is None:
            return None
        name = f"{self._prefix}.{request.name}"
        if isinstance(request, AllReduce):
            return request, start("allreduce", name, process_set, request.array)
        if isinstance(request, AllToAll):
            splits = np.array(request.splits, np.int32)
            return request, start("alltoall", name, process_set, request.data, splits)
        # Horovod's own broadcast needs the size on every rank.
        data = request.frame if isinstance(request, AllGather) else request.data
        return request, start("allgather", name, process_set, data)

    def finish(self, handle: tuple[Request, Future[Any]] | None) -> Any:
        """Wait for a started request; returns its reply, or None outside its group."""
        if handle is None:
            return None
        request, result = handle
        reply = result.result()
        if isinstance(request, AllToAll):
            received, sizes = reply
            return np.split(received, np.cumsum(sizes)[:-1])
        if isinstance(request, AllGather):
            size = self._process_sets[request.group].size()
            return split_frames(reply, size, request.count)
        return reply
