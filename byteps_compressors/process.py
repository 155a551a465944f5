"""Settings of a process before BytePS starts there."""

from __future__ import annotations

import os
import socket
import sys
from types import TracebackType

from gradcomp.errors import ConfigError

__all__ = ["LAUNCHED", "end_at_once", "resolve_scheduler"]

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


def resolve_scheduler() -> None:
    """Put the address of the scheduler's host where its name is: BytePS cannot listen at a name.

    Raises:
        ConfigError: nobody knows the name.
    """
    host = os.environ.get("DMLC_PS_ROOT_URI")
    if not host:
        return
    try:
        os.environ["DMLC_PS_ROOT_URI"] = socket.gethostbyname(host)
    except OSError as error:
        raise ConfigError(
            f"DMLC_PS_ROOT_URI is '{host}', which has no address ({error}): give the name or "
            "address of the scheduler's machine"
        ) from None
