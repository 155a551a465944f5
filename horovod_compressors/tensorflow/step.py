"""A step in a graph: operations that take gradients as the backward pass makes them.

TensorFlow runs operations in several threads, each when its inputs are there, but those that assign one
variable in the order of the program, also across functions and loops. So steps do not mix: each assigns a
variable of the compression before its first operation and after its last.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gradcomp.adapter_api import Collector, FloatArray, as_float32
from gradcomp.errors import ProtocolError

__all__ = ["Gradient", "Step", "new_turn", "put_into_graph"]

_DONE = np.float32(0)
"""The result of operations for which others wait."""

_turns = itertools.count()


class Gradient(NamedTuple):
    """One gradient of a graph."""

    name: str
    shape: tuple[int, ...]
    nbytes: int


class Step:
    """The step of a compression that is under way, if any."""

    def __init__(self) -> None:
        self._collector: Collector | None = None
        self._adding: list[Future[None]] = []
        self._encoder = ThreadPoolExecutor(1, "gradcomp-encoder")

    def check_ended(self) -> None:
        """Check that no step is under way.

        Raises:
            ProtocolError: an operation between a step's first and last one has failed.
        """
        if self._collector is not None:
            raise ProtocolError(
                "a step begins before the last one has ended: its backward pass has failed on this "
                "rank, while others may wait for its gradients; start the job again"
            )

    def begin(self, collector: Collector) -> None:
        """Note the collector of a step that has begun."""
        self._collector = collector

    def add(self, grads: Sequence[Gradient], values: Sequence[Any]) -> None:
        """Give gradients to the thread that encodes them and starts their exchange."""
        assert self._collector is not None  # the step has begun
        # An array of a tensor keeps its memory.
        work = partial(_add, self._collector, grads, values)
        self._adding.append(self._encoder.submit(work))

    def end(self, grads: Sequence[Gradient]) -> list[FloatArray]:
        """The averages of all gradients."""
        collector, adding = self._collector, self._adding
        assert collector is not None  # the step has begun
        self._collector, self._adding = None, []
        for one in adding:
            one.result()
        collector.check()
        averages = [collector.finish(one.name).reshape(one.shape) for one in grads]
        collector.end_step()
        return averages


def _add(collector: Collector, grads: Sequence[Gradient], values: Sequence[Any]) -> None:
    for one, value in zip(grads, values, strict=True):
        resolved = collector.resolve(one.name, one.shape)
        collector.add(resolved, as_float32(np.asarray(value)), one.nbytes)


def new_turn() -> Any:
    """The handle of a variable for `put_into_graph`.

    A function in which a ``tf.Variable`` is made would be traced twice.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        name = f"gradcomp.turn.{next(_turns)}"
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=name)


def put_into_graph(
    graph: Any,
    turn: Any,
    parts: Sequence[Sequence[tuple[Gradient, Any]]],
    begin: Callable[..., None],
    settings: Sequence[Any],
    add: Callable[[Sequence[Gradient], Sequence[Any]], None],
    end: Callable[[Sequence[Gradient]], list[FloatArray]],
) -> list[Any]:
    """Put the operations of a step into the present graph.

    Args:
        graph: the present graph.
        turn: of the compression, see `new_turn`.
        parts: gradients that one operation takes, with their tensors.
        begin: begins a step; called with the settings.
        settings: scalar tensors.
        add: takes the gradients of a part, and their arrays.
        end: ends the step, and returns the averages of all gradients.

    Returns:
        The averages of all gradients, in the order of the parts.
    """

    def first(_: Any, *values: Any) -> np.float32:
        begin(*values)
        return _DONE

    def take(grads: Sequence[Gradient], _: Any, *values: Any) -> np.float32:
        add(grads, values)
        return _DONE

    def last(grads: Sequence[Gradient], *_: Any) -> list[FloatArray]:
        return end(grads)

    all_grads = [grad for grad, _ in itertools.chain(*parts)]
    with tf.control_dependencies(
        _earliest(graph, [tensor for _, tensor in itertools.chain(*parts)])
    ):
        begins = tf.raw_ops.AssignVariableOp(resource=turn, value=1.0)
    with tf.control_dependencies([begins]):
        ours = tf.raw_ops.ReadVariableOp(resource=turn, dtype=tf.float32)
    # Stateful operations would wait for each other, and for those in the backward pass.
    operation = partial(tf.numpy_function, stateful=False)
    begun = operation(first, [ours, *settings], tf.float32)
    added = []
    for part in parts:
        inputs = [begun, *(tensor for _, tensor in part)]
        added.append(operation(partial(take, [grad for grad, _ in part]), inputs, tf.float32))
    dtypes = [tf.float32] * len(all_grads)
    averages = operation(partial(last, all_grads), [begun, *added], dtypes)
    with tf.control_dependencies(averages if dtypes else [averages]):
        tf.raw_ops.AssignVariableOp(resource=turn, value=0.0)
    if not dtypes:  # the result is then the operation
        return []
    for grad, average in zip(all_grads, averages, strict=True):
        average.set_shape(grad.shape)
    return list(averages)


def _earliest(graph: Any, tensors: Sequence[Any]) -> list[Any]:
    """The tensor that comes first, as far as the graph tells; a list, empty without tensors."""
    places = {operation.name: place for place, operation in enumerate(graph.get_operations())}
    own = [tensor for tensor in tensors if tensor.graph is graph]
    return sorted(own, key=lambda tensor: places[tensor.op.name])[:1]
