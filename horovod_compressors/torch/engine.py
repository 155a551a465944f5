"""Horovod's collectives for torch, as an engine for rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import horovod.torch as hvd
import torch

from gradcomp.adapter_api import AllGather, AllToAll, Broadcast, RankGroup, Request, split_frames
from horovod_compressors.torch.wait import wait

__all__ = ["SUMMABLE_DTYPES", "HorovodEngine"]

SUMMABLE_DTYPES = frozenset({torch.float16, torch.float32, torch.float64, torch.int32, torch.int64})
"""Dtypes that Horovod can all-reduce; it knows no bfloat16."""


class HorovodEngine:
    """Asynchronous collectives; tensors travel through CPU memory.

    Args:
        prefix: prefix of the collectives' names; the same on every rank.
        process_sets: the process set of each group that this rank is in.
    """

    def __init__(self, prefix: str, process_sets: Mapping[RankGroup, Any]) -> None:
        self._prefix = prefix
        self._process_sets = process_sets

    def start(self, request: Request) -> tuple[Request, int] | None:
        """Start a request without waiting, unless this rank is outside its group."""
        process_set = self._process_sets.get(request.group)
        if process_set is None:
            return None
        name = f"{self._prefix}.{request.name}"
        if isinstance(request, AllGather):
            frame = torch.from_numpy(request.frame)
            handle = hvd.allgather_async(frame, name=name, process_set=process_set)
        elif isinstance(request, Broadcast):
            # Horovod's own broadcast needs the size on every rank.
            data = torch.from_numpy(request.data)
            handle = hvd.allgather_async(data, name=name, process_set=process_set)
        elif isinstance(request, AllToAll):
            handle = hvd.alltoall_async(
                torch.from_numpy(request.data),
                splits=torch.tensor(request.splits, dtype=torch.int32),
                name=name,
                process_set=process_set,
            )
        else:
            handle = hvd.allreduce_async(
                torch.from_numpy(request.array),
                name=name,
                op=hvd.Average,
                process_set=process_set,
            )
        return request, handle

    def finish(self, handle: tuple[Request, int] | None) -> Any:
        """Wait for a started request; returns its reply, or None outside its group."""
        if handle is None:
            return None
        request, number = handle
        wait(number, self._process_sets[request.group].ranks)
        if isinstance(request, AllToAll):
            received, splits = hvd.synchronize(number)
            return [part.numpy() for part in received.split(splits.tolist())]
        reply = hvd.synchronize(number).numpy()
        if isinstance(request, AllGather):
            return split_frames(reply, self._process_sets[request.group].size(), request.count)
        return reply
