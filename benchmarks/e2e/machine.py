"""Description of the measuring machine."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from gradcomp import _core
from gradcomp.processors import processors

__all__ = ["machine"]

_CPUINFO = Path("/proc/cpuinfo")


def machine() -> str:
    """The processor, the instruction set in use, and the number of available cores."""
    found = None
    if _CPUINFO.exists():
        found = re.search(r"^model name\s*: (.+)$", _CPUINFO.read_text("utf-8"), re.MULTILINE)
    name = found[1].strip() if found else platform.machine()
    return f"{name}, {_core.simd_level()}, {processors()} cores"
