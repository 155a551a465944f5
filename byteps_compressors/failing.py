"""How a worker fails."""

from __future__ import annotations

import os
import sys
from types import TracebackType

__all__ = ["LAUNCHED", "end_at_once"]

LAUNCHED = "GRADCOMP_BYTEPS_LAUNCHED"
"""Set in the environment of workers that byteps_compressors.launch has started."""


def end_at_once() -> None:
    """Have an uncaught exception end this process, where it is a worker of our launcher.

    BytePS, when it is shut down, waits for all workers to do the same. A worker that fails would
    wait for others, which wait for its gradients, and the launcher could not tell.
    """
    if LAUNCHED not in os.environ:
        return
    shown = sys.excepthook

    def show_and_end(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        shown(kind, error, traceback)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    sys.excepthook = show_and_end
