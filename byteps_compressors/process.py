"""Process settings that must be made before BytePS starts."""

from __future__ import annotations

import os
import socket
import sys
from types import TracebackType

from gradcomp.errors import ConfigError

__all__ = ["LAUNCHED", "end_at_once", "resolve_scheduler"]

LAUNCHED = "GRADCOMP_BYTEPS_LAUNCHED"
"""Environment variable that byteps_compressors.launch sets for its workers."""


def end_at_once() -> None:
    """Make an uncaught exception end this process at once, if byteps_compressors.launch started it.

    BytePS' shutdown waits for all workers. Without this, a failed worker would wait for the others,
    which wait for its gradients, and the launcher would not notice the failure.
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
    """Replace the scheduler's host name in DMLC_PS_ROOT_URI by its address.

    BytePS cannot listen at a host name.

    Raises:
        ConfigError: the name cannot be resolved.
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
