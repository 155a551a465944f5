"""Messages of a job on stderr, where the application has set up no logging."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from gradcomp.errors import ConfigError

__all__ = ["show_messages"]

_VARIABLE = "GRADCOMP_LOG"
_LOGGERS = (
    "gradcomp",
    "gradcomp_torch",
    "byteps_compressors",
    "horovod_compressors",
    "torch_compressors",
)
_LEVELS = {"quiet": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to the present stderr, unless the application has handlers: these get the records, too."""

    def __init__(self, always: bool) -> None:
        super().__init__(sys.stderr)
        self.always = always

    def emit(self, record: logging.LogRecord) -> None:
        if self.always or not logging.getLogger().handlers:
            self.setStream(sys.stderr)
            super().emit(record)


def show_messages(always: bool = False) -> None:
    """Show messages from the level of ``GRADCOMP_LOG`` on: quiet (warnings), info (the default), debug.

    Without the variable, the logging of an application has its own levels and handlers: then nothing changes.

    Args:
        always: whatever logging the application has, or sets up later.

    Raises:
        ConfigError: ``GRADCOMP_LOG`` has another value.
    """
    asked = os.environ.get(_VARIABLE, "")
    if asked and asked not in _LEVELS:
        raise ConfigError(f"{_VARIABLE} is '{asked}'; it must be one of {', '.join(_LEVELS)}")
    if not (asked or always) and logging.getLogger().handlers:
        return
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if logger.handlers or logger.level != logging.NOTSET:
            continue
        logger.setLevel(_LEVELS[asked or "info"])
        logger.addHandler(_Handler(always))
        logger.propagate = not always
