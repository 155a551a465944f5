"""Names of ranks that are late in ``hvd.init()``, or lost when Horovod fails; both on stderr.

Stock Horovod ends the process in both cases, or raises an error without a rank. Nothing here
changes when a job ends: it only adds lines to its output. Only horovodrun on Gloo has a store.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any

from gradcomp.adapter_api import Marks, ranks_text
from horovod_compressors.liveness import job_marks, seconds_of

__all__ = ["watch"]

_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_NOTICE = 0.8
"""Part of the time limit after which late ranks are named; at the limit Horovod aborts."""

_ROLL_CALL_SECONDS = 5.0
"""Wait for the marks of the others after a failure: they notice it at about the same time."""

# Modules that have `init` of another module under their own name.
_COPIES = {"horovod.tensorflow": ("horovod.tensorflow.keras", "horovod.keras")}

_inits = itertools.count()
_watched: set[str] = set()


def watch(hvd: Any) -> None:
    """Watch ``hvd.init()`` and the end of this process; without a store nothing happens.

    Args:
        hvd: ``horovod.torch`` or ``horovod.tensorflow``.
    """
    marks = job_marks()
    name = hvd.__name__
    if marks is None or name in _watched:
        return
    if not _watched:
        sys.excepthook = _then_name_lost_ranks(sys.excepthook, marks)
    _watched.add(name)
    watched = _watched_init(hvd.init, hvd.is_initialized)
    for module in (name, *_COPIES.get(name, ())):
        if module in sys.modules:
            sys.modules[module].init = watched  # type: ignore[attr-defined]


def _watched_init(
    init: Callable[..., Any], is_initialized: Callable[[], bool]
) -> Callable[..., Any]:
    @wraps(init)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if is_initialized():
            return init(*args, **kwargs)
        over = threading.Event()
        waiting = threading.Thread(
            target=_name_late_ranks,
            args=(job_marks(f"init-{next(_inits)}-rank"), over),
            name="hvd.init() liveness check",
            daemon=True,
        )
        waiting.start()
        try:
            return init(*args, **kwargs)
        finally:
            over.set()
            waiting.join()

    return watched


def _name_late_ranks(marks: Marks, over: threading.Event) -> None:
    """Leave a mark, and name the ranks without one shortly before Horovod gives up."""
    limit = seconds_of(_TIMEOUT, 30.0)
    marks.answer()
    if over.wait(_NOTICE * limit):
        return
    late = next(marks.looks(0))
    first = min(set(marks.ranks) - set(late))
    if late and marks.rank == first:
        _print(
            f"{ranks_text(late)} not answer: no call of hvd.init() there for {_NOTICE * limit:g} s. "
            f"Horovod ends the job after {_TIMEOUT} ({limit:g} s): see the output there, and set a "
            "longer time if ranks only start late"
        )


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def _then_name_lost_ranks(before: _Hook, marks: Marks) -> _Hook:
    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        before(kind, error, traceback)
        if not _is_of_horovod(kind, error):
            return
        missing = marks.wait_for_renewals(_ROLL_CALL_SECONDS)
        marks.answer()
        if missing:
            _print(f"{ranks_text(missing)} not answer (stopped, or ended): see the output there")

    return hook


def _is_of_horovod(kind: type[BaseException], error: BaseException) -> bool:
    """Whether a collective has failed; TensorFlow raises its own errors for Horovod's."""
    if kind.__name__ == "HorovodInternalError":
        return True
    return kind.__module__.startswith("tensorflow.") and "Horovod" in str(error)


def _print(text: str) -> None:
    print(f"gradcomp: {text}", file=sys.stderr, flush=True)
