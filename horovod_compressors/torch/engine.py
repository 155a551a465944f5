"""Horovod's collectives for torch, as an engine for rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from weakref import ReferenceType, ref

import horovod.torch as hvd
import numpy as np
import torch

from gradcomp.adapter_api import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    ByteArray,
    RankGroup,
    Request,
    split_frames,
)
from gradcomp_torch.device_messages import DeviceMessage, message_of
from horovod_compressors.torch.wait import synchronize, wait

__all__ = ["SUMMABLE_DTYPES", "HorovodEngine"]

SUMMABLE_DTYPES = frozenset({torch.float16, torch.float32, torch.float64, torch.int32, torch.int64})
"""Dtypes that Horovod can all-reduce; it does not know bfloat16."""

_LARGE_BYTES = 32 << 20
"""The C library gives memory above this size back to the system, which clears it before the next use."""


class HorovodEngine:
    """Asynchronous collectives; tensors travel through CPU memory, or from device to device where they are there.

    Horovod names a collective without a name by the number of handles so far, which must be the same
    on all ranks. So ranks outside of an exchange between nodes start a collective among themselves.

    Args:
        prefix: prefix of the collectives' names; the same on every rank.
        process_sets: the process set of each group that this rank is in.
        followers: the process set of the ranks that lead no node, on these ranks.
    """

    def __init__(
        self, prefix: str, process_sets: Mapping[RankGroup, Any], followers: Any = None
    ) -> None:
        self._prefix = prefix
        self._process_sets = process_sets
        self._followers = followers
        self._replies: dict[str, tuple[torch.Tensor, ReferenceType[ByteArray]]] = {}
        self._on_devices: dict[str, torch.Tensor] = {}

    def start(self, request: Request) -> tuple[Request, int] | None:
        """Start a request without waiting, unless this rank is outside its group."""
        process_set = self._process_sets.get(request.group)
        name = f"{self._prefix}.{request.name}"
        if process_set is None:
            if self._followers is None:
                return None
            return request, hvd.allreduce_async(
                torch.zeros(1, dtype=torch.float32, device="cpu"),
                name=name,
                process_set=self._followers,
            )
        message = message_of(request)
        if message is not None:
            with message.behind():
                return request, self._start_direct(request, message, name, process_set)
        if isinstance(request, AllGather):
            frame = torch.from_numpy(request.frame)
            # The public functions of this and of `AllToAll` make new outputs.
            output = self._memory(request.name)
            handle = hvd.mpi_ops._allgather_async(frame, output, name, process_set)
        elif isinstance(request, Broadcast):
            # Horovod's own broadcast needs the size on every rank.
            data = torch.from_numpy(request.data)
            handle = hvd.allgather_async(data, name=name, process_set=process_set)
        elif isinstance(request, AllToAll):
            splits = torch.tensor(request.splits, dtype=torch.int32, device="cpu")
            data, output = torch.from_numpy(request.data), self._memory(request.name)
            handle = hvd.mpi_ops._alltoall_async(
                data, splits, output, splits.new(), name, process_set
            )
        else:
            array = torch.from_numpy(request.array)
            allreduce = hvd.allreduce_async_ if request.overwrite else hvd.allreduce_async
            handle = allreduce(array, name=name, **_averaging(array, process_set))
        return request, handle

    def finish(self, handle: tuple[Request, int] | None) -> Any:
        """Wait for a started request; returns its reply, or None outside its group."""
        if handle is None:
            return None
        request, number = handle
        process_set = self._process_sets.get(request.group)
        wait(number, (process_set or self._followers).ranks)
        result = synchronize(number)
        if process_set is None:
            return None
        message = message_of(request)
        if message is not None:
            reply = result[0] if isinstance(request, AllToAll) else result
            if isinstance(request, AllReduce):
                return DeviceMessage(reply, message.staging)
            return message.replies(reply, process_set.size())
        if isinstance(request, AllToAll):
            received, splits = result
            return np.split(self._bytes(request.name, received), np.cumsum(splits.numpy())[:-1])
        if isinstance(request, AllGather):
            reply = self._bytes(request.name, result)
            return split_frames(reply, process_set.size(), request.count)
        return result.numpy()

    def _start_direct(
        self, request: Request, message: DeviceMessage, name: str, process_set: Any
    ) -> int:
        """Start a request from the memory of a device, when what was launched there so far is done."""
        if isinstance(request, AllReduce):
            averaging = _averaging(message.data, process_set)
            handle: int = hvd.allreduce_async_(message.data, name=name, **averaging)
            return handle
        # One place in all steps, so that what reads it can be replayed.
        key = f"{request.kind} {request.name}"
        output = self._on_devices.setdefault(key, message.data.new_empty(0))
        if isinstance(request, AllToAll):
            splits = torch.tensor(request.splits, dtype=torch.int32, device="cpu")
            handle = hvd.mpi_ops._alltoall_async(
                message.data, splits, output, splits.new(), name, process_set
            )
        else:
            handle = hvd.mpi_ops._allgather_async(message.data, output, name, process_set)
        return handle

    def _memory(self, name: str) -> torch.Tensor:
        """A tensor for Horovod to resize: a large reply of the last step, if nothing refers to it."""
        kept = self._replies.pop(name, None)
        if kept is not None and kept[1]() is None:
            return kept[0]
        return torch.empty(0, dtype=torch.uint8, device="cpu")

    def _bytes(self, name: str, reply: torch.Tensor) -> ByteArray:
        """A reply as an array, and its memory kept for `_memory` if it is large."""
        # `Tensor.numpy` would fix the tensor's size for ever. All parts of the array refer to this one.
        array = cast("ByteArray", np.from_dlpack(reply))
        if reply.nbytes >= _LARGE_BYTES:
            self._replies[name] = reply, ref(array)
        return array


def _averaging(numbers: torch.Tensor, process_set: Any) -> dict[str, Any]:
    """Arguments of an all-reduce that averages; see `AllReduce.headroom`."""
    factor = AllReduce.headroom(numbers.dtype, process_set.size())
    return {
        "op": hvd.Average,
        "prescale_factor": factor,
        "postscale_factor": 1 / factor,
        "process_set": process_set,
    }
