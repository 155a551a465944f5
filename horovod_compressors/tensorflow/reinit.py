"""Horovod's side of elastic jobs with TensorFlow: re-initialization, single-rank phases, and lost ranks.

A "life" lasts from one ``hvd.init()`` to the next. Graphs outlive it, so nothing of it may be in them.
This file uses private names of Horovod; the tests of elastic jobs fail without them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

__all__ = ["in_branch", "life", "prepare", "telling_lost_ranks"]

_current: object = object()


def life() -> object:
    """The present life of Horovod: another object after each reset."""
    return _current


def prepare() -> None:
    """Note the lives of Horovod, and let compressions average on a rank that is alone, too."""
    basics = hvd.mpi_ops._basics
    basics.init = _noting(basics.init)
    hvd._allreduce_cond = _always(hvd._allreduce_cond, hvd.allreduce)
    hvd._grouped_allreduce_cond = _always(hvd._grouped_allreduce_cond, hvd.grouped_allreduce)


def _noting(init: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init)
    def noting(*args: Any, **kwargs: Any) -> Any:
        global _current
        begins = not hvd.is_initialized()
        result = init(*args, **kwargs)
        if begins:
            _current = object()
        return result

    return noting


def _always(stock: Callable[..., Any], reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Horovod's function returns a lone rank's gradients as they are, without their residuals."""

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    @functools.wraps(stock)
    def reducing(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(kwargs.get("compression"), "agree"):
            return stock(tensors, *args, **kwargs)
        return in_branch(lambda: reduce(tensors, *args, **kwargs), lambda: tensors)

    return reducing  # type: ignore[no-any-return]


def in_branch(operation: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """An operation that a lost rank lets fail, in a branch of the graph that is always taken.

    TensorFlow collects the origins of all nodes of the function that has failed, before it raises the
    error. A branch is a small function; a model's step takes milliseconds.
    """
    return tf.cond(hvd.size_op() > 0, operation, otherwise)


@contextmanager
def telling_lost_ranks() -> Iterator[None]:
    """Raise errors of an operation in a graph such that ``hvd.elastic.run`` does the right thing.

    It resets the job after an ``UnknownError`` if its text names one of three operations. After any other
    ``UnknownError`` it returns as if training had ended. So a lost rank must have such a name in its
    text, and other errors must not be an ``UnknownError``: TensorFlow makes an
    ``InvalidArgumentError`` of a ``ValueError``.
    """
    try:
        yield
    except tf.errors.UnknownError as error:  # of Horovod's collectives
        # Without its cause: TensorFlow would read and format its many lines before the reset begins.
        raise RuntimeError(f"HorovodAllgather has failed: {error.message}") from None
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
