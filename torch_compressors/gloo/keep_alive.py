"""References to the last collectives of Gloo, until the interpreter ends."""

from __future__ import annotations

import atexit
import ctypes
from collections import deque

import torch.distributed as dist

__all__ = ["keep"]

_last: deque[dist.Work] = deque(maxlen=8)
# One reference more, so that the interpreter does not release them at its end either.
atexit.register(ctypes.pythonapi.Py_IncRef, ctypes.py_object(_last))


def keep(work: dist.Work) -> dist.Work:
    """Keep a reference to a collective that has just been launched; returns it.

    Otherwise a thread of PyTorch may release the last reference, with the tensors in it, after the
    interpreter has ended, which aborts the process. Of collectives that are done only the last one is
    kept, for the others' tensors take memory.
    """
    while len(_last) > 1 and _last[0].is_completed():
        _last.popleft()
    _last.append(work)
    return work
