"""Horovod's collectives for TensorFlow, as an engine for rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from gradcomp.adapter_api import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    RankGroup,
    Request,
    split_frames,
)

__all__ = ["HorovodEngine", "gather_bytes"]

# Horovod's eager collectives of one kind have one name, so only one may run at a time: one thread runs
# those of all engines.
_thread = ThreadPoolExecutor(1, "gradcomp-horovod")


@dataclass
class _Pending:
    """A request; its reply once it has run."""

    request: Any
    run: Future[None] | None = None
    reply: Any = None


class HorovodEngine:
    """Collectives of the eager API, which block: requests wait in a queue for `send`, and a thread runs them.

    Ranks must start the same requests in the same order, also requests of groups that they are
    outside of. They must call `send` and `finish` at the same points.

    Args:
        process_sets: the process set of each group that this rank is in.
    """

    def __init__(self, process_sets: Mapping[RankGroup, Any]) -> None:
        self._process_sets = process_sets
        self._queue: list[_Pending] = []

    def start(self, request: Request) -> _Pending:
        """Put a request in the queue."""
        pending = _Pending(request)
        self._queue.append(pending)
        return pending

    def send(self) -> None:
        """Let the thread run the requests in the queue, as one group, after those before."""
        queue, self._queue = self._queue, []
        if queue:
            run = _thread.submit(self._run, queue)
            for pending in queue:
                pending.run = run

    def finish(self, handle: _Pending) -> Any:
        """The reply to a request; sends the whole queue if the request is still waiting."""
        if handle.run is None:
            self.send()
        assert handle.run is not None  # it was in the queue
        handle.run.result()
        return handle.reply

    def _run(self, queue: Sequence[_Pending]) -> None:
        for group, process_set in self._process_sets.items():
            _run([pending for pending in queue if pending.request.group == group], process_set)


def _run(queue: Sequence[_Pending], process_set: Any) -> None:
    """Run the requests of a group: all gathers at once, then all sums of a dtype."""
    gathers = _of(queue, AllGather, Broadcast)
    if gathers:
        # Horovod's own broadcast needs the size on every rank.
        frames = [_tensor(_bytes_of(pending.request)) for pending in gathers]
        replies = hvd.grouped_allgather(frames, process_set=process_set)
        for pending, reply in zip(gathers, replies, strict=True):
            pending.reply = _array(reply)
            if isinstance(pending.request, AllGather):
                pending.reply = split_frames(
                    pending.reply, process_set.size(), pending.request.count
                )
    sums: dict[Any, list[_Pending]] = {}
    for pending in _of(queue, AllReduce):
        sums.setdefault(pending.request.array.dtype, []).append(pending)
    for of_dtype in sums.values():
        arrays = [_tensor(pending.request.array) for pending in of_dtype]
        factor = AllReduce.headroom(of_dtype[0].request.array.dtype, process_set.size())
        averages = hvd.grouped_allreduce(
            arrays,
            op=hvd.Average,
            prescale_factor=factor,
            postscale_factor=1 / factor,
            process_set=process_set,
        )
        for pending, average in zip(of_dtype, averages, strict=True):
            pending.reply = _array(average)
    for pending in _of(queue, AllToAll):
        splits = tf.constant(pending.request.splits, tf.int32)
        received, sizes = hvd.alltoall(
            _tensor(pending.request.data), splits=splits, process_set=process_set
        )
        pending.reply = np.split(_array(received), np.cumsum(sizes.numpy())[:-1])


def _of(queue: Sequence[_Pending], *kinds: type) -> list[_Pending]:
    return [pending for pending in queue if isinstance(pending.request, kinds)]


def _bytes_of(request: AllGather | Broadcast) -> Any:
    return request.frame if isinstance(request, AllGather) else request.data


def gather_bytes(data: Any, process_set: Any) -> bytes:
    """The bytes of all ranks, one after the other in rank order."""
    tensor = _tensor(np.frombuffer(data, np.uint8))
    return bytes(_array(_thread.submit(hvd.allgather, tensor, process_set=process_set).result()))


def _tensor(array: Any) -> Any:
    # Shares the array's memory, which does not change while a collective runs; TensorFlow's own
    # conversion copies.
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _array(tensor: Any) -> Any:
    return np.asarray(memoryview(tensor))
