"""Speeds measured on this machine, kept between commands."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradcomp import _core
from gradcomp.codec.spec import parse
from gradcomp.tools.advise.calibrate import Speeds
from gradcomp.tools.advise.copies import copying_library
from gradcomp.version import installed_version

__all__ = ["SpeedCache", "machine_key"]

_CPUINFO = Path("/proc/cpuinfo")

_MEASUREMENT = 5
"""Number of the way in which speeds are measured; others count as unknown."""


def machine_key() -> dict[str, str | int]:
    """Conditions of a measurement: version, processor, instruction set, threads, library that copies."""
    found = None
    with suppress(OSError):
        found = re.search(r"^model name\s*: (.+)$", _CPUINFO.read_text("utf-8"), re.MULTILINE)
    return {
        "version": installed_version(),
        "measurement": _MEASUREMENT,
        "cpu": found[1].strip() if found else platform.machine(),
        "simd": _core.simd_level(),
        "threads": _core.thread_count(),
        "copies": copying_library(),
    }


class SpeedCache:
    """A file in a directory.

    A damaged file, or one of another version or machine, counts as empty. Where the directory cannot
    be written, speeds are measured each time.

    Args:
        directory: None: that of the user's caches (``XDG_CACHE_HOME``, or ``~/.cache``).
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._key = machine_key()
        digest = hashlib.blake2b(json.dumps(self._key).encode(), digest_size=8).hexdigest()
        if directory is None:
            base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
            directory = Path(base, "gradcomp")
        self.path = directory / f"speeds-{digest}.json"
        self._kept: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            saved = json.loads(self.path.read_text("utf-8"))
            if isinstance(saved, dict) and saved.get("key") == self._key:
                self._kept = saved

    def clear(self) -> None:
        """Forget everything."""
        self._kept = {}

    def speeds(self, spec: str, exchange: str) -> Speeds | None:
        """The kept speeds; None if there are none."""
        try:
            return Speeds.from_json(self._kept["speeds"][_name(spec, exchange)])
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def keep_speeds(self, spec: str, exchange: str, speeds: Speeds) -> None:
        """Keep speeds."""
        self._kept.setdefault("speeds", {})[_name(spec, exchange)] = speeds.to_json()
        self._write()

    def copy_byte(self, at_once: int) -> float | None:
        """The kept seconds of a copied byte, with this many copies at once."""
        kept = self._kept.get(f"copy_byte {at_once}")
        return kept if isinstance(kept, float) and kept > 0 else None

    def keep_copy_byte(self, at_once: int, seconds: float) -> None:
        """Keep the seconds of a copied byte."""
        self._kept[f"copy_byte {at_once}"] = seconds
        self._write()

    def _write(self) -> None:
        self._kept["key"] = self._key
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Ranks of a job may write at the same time.
            part = self.path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(self._kept), "utf-8")
            part.replace(self.path)


def _name(spec: str, exchange: str) -> str:
    """The same for each way to write a spec."""
    return f"{parse(spec).canonical} {exchange}"
