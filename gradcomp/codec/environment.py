"""Warnings of values of the core's environment variables that the core ignores."""

from __future__ import annotations

import os
import re
import reprlib
import warnings

from gradcomp import _core

__all__ = ["warn_of_ignored_variables"]

_MAX_THREADS = 256


def warn_of_ignored_variables() -> None:
    """Warn if GRADCOMP_THREADS or GRADCOMP_SIMD has a value that the core ignores."""
    threads = os.environ.get("GRADCOMP_THREADS", "")
    number = re.fullmatch("0*([1-9][0-9]{0,2})", threads)
    if threads and not (number and int(number[1]) <= _MAX_THREADS):
        _warn("GRADCOMP_THREADS", threads, f"an integer from 1 to {_MAX_THREADS}", "1")
    simd = os.environ.get("GRADCOMP_SIMD", "")
    if simd and simd not in _core.simd_levels():
        levels = ", ".join(_core.simd_levels())
        _warn("GRADCOMP_SIMD", simd, f"one that this machine has: {levels}", _core.simd_level())


def _warn(name: str, value: str, expected: str, default: str) -> None:
    warnings.warn(
        f"{name} is {reprlib.repr(value)}, which is ignored for {default}; set it to {expected}, "
        "or unset it",
        RuntimeWarning,
        stacklevel=3,
    )
