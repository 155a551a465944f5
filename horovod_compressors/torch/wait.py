"""Waiting for Horovod's collectives while others use the processor.

Horovod's own wait, ``hvd.synchronize``, looks at a collective again and again without a pause.
Ranks that are still computing may need that processor, and so may Horovod's own thread.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from types import MethodType
from typing import Any

import horovod.torch as hvd

__all__ = ["wait", "wait_first"]

_FIRST_NAP = 5e-5
_LONGEST_NAP = 1e-3
"""Seconds between looks at a collective; Horovod itself looks at new ones once a millisecond."""


def wait(handle: int) -> None:
    """Until ``hvd.synchronize(handle)`` need not wait any more."""
    nap = _FIRST_NAP
    while not hvd.poll(handle):
        time.sleep(nap)
        # Each look takes others some of the processor: in a long wait there are few.
        nap = min(1.25 * nap, _LONGEST_NAP)


def wait_first(optimizer: Any) -> None:
    """Let a stock ``hvd.DistributedOptimizer`` wait so before it synchronizes.

    That is in ``step()``, and before it where gradients are clipped or looked at.
    """
    # A bound method: copies of the optimizer then have one of their own.
    optimizer.synchronize = MethodType(_synchronize, optimizer)


def _synchronize(optimizer: Any) -> None:
    _wait_for_all(optimizer)
    type(optimizer).synchronize(optimizer)


def _wait_for_all(optimizer: Any) -> None:
    submitted = optimizer._handles
    parameters: set[Any] = set()
    for key in submitted:
        parameters.update(key if isinstance(key, tuple) else (key,))  # a tuple is a group
    handles: Collection[Any] = [handle for handle, _ in submitted.values()]
    # Where some are left, the optimizer submits them before it waits: waiting for the others here
    # could be waiting for ranks that wait for these. Otherwise it waits for the same ones next.
    if optimizer._requires_update <= parameters and all(isinstance(one, int) for one in handles):
        for handle in handles:
            wait(handle)
