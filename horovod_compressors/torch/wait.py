"""Waits for Horovod's collectives without using a processor.

Horovod's own wait, ``hvd.synchronize``, polls a collective without a pause. Ranks that are still
computing may need that processor, and so may Horovod's own thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from types import MethodType
from typing import Any

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError

from gradcomp.errors import ProtocolError
from horovod_compressors.stall import StallCheck

__all__ = ["synchronize", "wait", "wait_first"]

_FIRST_NAP = 5e-5
_LONGEST_NAP = 1e-3
"""Seconds between polls of a collective; Horovod itself starts new ones once a millisecond."""


def wait(handle: int, ranks: Collection[int] | None = None) -> None:
    """Wait until ``hvd.synchronize(handle)`` would return at once.

    Args:
        handle: of an asynchronous collective.
        ranks: the ranks that take part; None for all.

    Raises:
        PeerError: see `StallCheck.look`.
    """
    nap = _FIRST_NAP
    while not hvd.poll(handle):
        time.sleep(nap)
        # Each poll costs processor time: in a long wait polls are rare.
        nap = min(1.25 * nap, _LONGEST_NAP)
        if nap == _LONGEST_NAP:
            break
    else:
        return
    stall_check = StallCheck(partial(hvd.poll, handle), ranks)
    while not hvd.poll(handle):
        time.sleep(nap)
        stall_check.look()


def synchronize(handle: int) -> Any:
    """``hvd.synchronize(handle)``.

    Raises:
        ProtocolError: a rank is in ``hvd.join()``.
    """
    try:
        return hvd.synchronize(handle)
    except HorovodInternalError as error:
        if "with Join" not in str(error):
            raise
        raise ProtocolError(
            "a rank is in hvd.join(), which answers no exchange but sums: use "
            f"Compression(..., uneven=True) and its join() instead of hvd.join() ({error})"
        ) from error


def wait_first(
    optimizer: Any,
    check: Callable[[], None],
    finish: Callable[[], None],
    waited: Callable[[float], None],
) -> None:
    """Make a stock ``hvd.DistributedOptimizer`` `wait` before it synchronizes.

    It synchronizes in ``step()``, or when the script calls ``synchronize()``.

    Args:
        check: called first; raises an error if the ranks are apart: one that has ended sends no more
            gradients.
        finish: called before the wait if all gradients are submitted; ends their exchanges, which
            are read while Horovod still works on other collectives.
        waited: called with the seconds of the wait.
    """
    # A bound method, so that copies of the optimizer get their own.
    optimizer.synchronize = MethodType(partial(_synchronize, check, finish, waited), optimizer)


def _synchronize(
    check: Callable[[], None],
    finish: Callable[[], None],
    waited: Callable[[float], None],
    optimizer: Any,
) -> None:
    check()
    if _all_submitted(optimizer):
        finish()
        begin = time.perf_counter()
        _wait_for_all(optimizer)
        waited(time.perf_counter() - begin)
    type(optimizer).synchronize(optimizer)


def _all_submitted(optimizer: Any) -> bool:
    """Whether Horovod has the gradients of all parameters.

    If some are left, the optimizer submits them before it waits. To wait sooner could be a deadlock:
    other ranks may wait for these parameters.
    """
    parameters: set[Any] = set()
    for key, (handle, _) in optimizer._handles.items():
        if not isinstance(handle, int):
            return False
        parameters.update(key if isinstance(key, tuple) else (key,))  # a tuple is a group
    return bool(optimizer._requires_update <= parameters)


def _wait_for_all(optimizer: Any) -> None:
    # The stock optimizer for op=Adasum has no process set.
    ranks = getattr(optimizer, "process_set", hvd.global_process_set).ranks
    for handle, _ in optimizer._handles.values():
        wait(handle, ranks)
