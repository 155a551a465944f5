"""Horovod's collectives for TensorFlow by name, in the background.

Horovod names a collective as its operation in the graph. Outside of graphs an operation has the name of
its kind, so that only one of each kind may be under way. So a session runs these, from a graph of their
own. It needs no thread of TensorFlow's pool, whose threads may all be waiting for a collective.
"""

from __future__ import annotations

import atexit
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from queue import SimpleQueue
from typing import Any, Literal

import horovod.tensorflow as hvd
import tensorflow as tf

__all__ = ["Kind", "start"]

Kind = Literal["allreduce", "allgather", "alltoall"]

_END_SECONDS = 10.0
"""How long a process that ends waits for its collectives, which `hvd.shutdown` stops."""


def start(kind: Kind, name: str, process_set: Any, *arrays: Any) -> Future[Any]:
    """Start a collective; the arrays must not change until it has ended.

    Args:
        kind: "allreduce" for the average, "allgather", or "alltoall".
        name: the same on every rank, and of no other collective that is under way.
        process_set: the ranks that take part.
        arrays: the data; for "alltoall" also the number of elements for each rank.

    Returns:
        The array of the result; for "alltoall" also the number of elements from each rank.
    """
    dtype = tf.as_dtype(arrays[0].dtype)
    run = _graph.collective(kind, name, dtype, process_set)
    return _threads.run(partial(run, *arrays))


class _Graph:
    """Makes the operations, each at its first use."""

    def __init__(self) -> None:
        self._graph = tf.Graph()
        self._session: Any = None
        self._known: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def collective(self, kind: Kind, name: str, dtype: Any, process_set: Any) -> Callable[..., Any]:
        """A function that runs a collective, in the thread that calls it."""
        key = kind, name, dtype.name, process_set.process_set_id
        with self._lock:
            if key not in self._known:
                self._known[key] = self._make(_node_name(key), kind, dtype, process_set)
            return self._known[key]

    def _make(self, node: str, kind: Kind, dtype: Any, process_set: Any) -> Callable[..., Any]:
        if self._session is None:
            config = tf.compat.v1.ConfigProto(
                device_count={"GPU": 0},
                inter_op_parallelism_threads=-1,  # in the thread of the caller
                use_per_session_threads=True,
            )
            self._session = tf.compat.v1.Session(graph=self._graph, config=config)
        with self._graph.as_default():
            fed = [tf.compat.v1.placeholder(dtype)]
            if kind == "allreduce":
                result = hvd.allreduce(*fed, op=hvd.Average, name=node, process_set=process_set)
            elif kind == "allgather":
                result = hvd.allgather(*fed, name=node, process_set=process_set)
            else:
                fed.append(tf.compat.v1.placeholder(tf.int32))
                result = hvd.alltoall(*fed, name=node, process_set=process_set)
        return self._session.make_callable(result, fed)  # type: ignore[no-any-return]


def _node_name(key: tuple[Any, ...]) -> str:
    """A name that TensorFlow allows and leaves as it is; it takes names as equal that differ in case."""
    kind, name, *_ = key
    digest = blake2b(repr(key).encode(), digest_size=4).hexdigest()
    return f"{re.sub('[^A-Za-z0-9_.]', '_', name)}.{kind}.{digest}"


@dataclass(frozen=True)
class _Job:
    work: Callable[[], Any]
    result: Future[Any]


class _Threads:
    """A thread for each collective that is under way; threads are used again.

    There is no limit. With one, the threads of a rank could all wait for collectives that have found no
    thread on another rank. No thread keeps the process from ending.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._changed = threading.Condition()
        self._threads = 0
        self._busy = 0
        atexit.register(self._end)

    def run(self, work: Callable[[], Any]) -> Future[Any]:
        """Begin to run a function in a thread."""
        job = _Job(work, Future())
        with self._changed:
            self._busy += 1
            starts = self._busy > self._threads
            self._threads += starts
        self._jobs.put(job)
        if starts:
            threading.Thread(target=self._serve, name="gradcomp-collective", daemon=True).start()
        return job.result

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            result = error = None
            try:
                result = job.work()
            except BaseException as raised:
                error = raised
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()
            if error is None:
                job.result.set_result(result)
            else:
                job.result.set_exception(error)
            del job, result, error  # arrays that the next job would keep alive

    def _end(self) -> None:
        # A thread that returns from TensorFlow after Python has ended would abort the process.
        with self._changed:
            if self._busy:
                hvd.shutdown()
                self._changed.wait_for(lambda: self._busy == 0, _END_SECONDS)


_graph = _Graph()
_threads = _Threads()
