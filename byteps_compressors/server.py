"""Run BytePS' server or scheduler with the plug-in: ``python -m byteps_compressors.server``.

The settings come from BytePS' environment variables: DMLC_ROLE (``server`` or ``scheduler``),
DMLC_NUM_WORKER, DMLC_NUM_SERVER, DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT. The process ends when all
workers have ended. See docs/byteps.md.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import sysconfig

from byteps_compressors import native
from byteps_compressors.build import byteps_folder
from byteps_compressors.process import resolve_scheduler
from gradcomp import list_codecs
from gradcomp.errors import ConfigError, GradcompError

__all__ = ["REQUIRED", "main"]

REQUIRED = (
    "DMLC_ROLE",
    "DMLC_NUM_WORKER",
    "DMLC_NUM_SERVER",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
)
"""Required environment variables."""


def main() -> int:
    """Serve until all workers have ended; returns the exit code."""
    try:
        _check_environment()
        resolve_scheduler()
        library = _load()
    except GradcompError as error:
        print(f"byteps_compressors.server: {error}", file=sys.stderr)
        return 2
    # No Python code runs while BytePS serves, so Python handlers would never be called.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_DFL)
    library.byteps_server()
    return 0


def _check_environment() -> None:
    missing = [name for name in REQUIRED if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"the environment lacks {', '.join(missing)}: set them as docs/byteps.md says, or let "
            "python -m byteps_compressors.launch start the servers"
        )
    role = os.environ["DMLC_ROLE"]
    if role not in ("server", "scheduler"):
        raise ConfigError(f"DMLC_ROLE is '{role}'; it must be server or scheduler here")


def _load() -> ctypes.CDLL:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    # RTLD_GLOBAL: the plug-in uses its symbols. The workers' library must not be loaded as well.
    path = byteps_folder() / "server" / f"c_lib{suffix}"
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    if os.environ["DMLC_ROLE"] == "server":
        native.load()
        list_codecs()  # loads codec plug-ins of installed packages while Python code still runs
    return library


if __name__ == "__main__":
    sys.exit(main())
