"""How much of the suite runs, by the environment variable GRADCOMP_TESTS: see scripts/test --help."""

from __future__ import annotations

import os

__all__ = ["FULL", "by_scope"]

_scope = os.environ.get("GRADCOMP_TESTS", "default")
if _scope not in ("default", "full"):
    raise ValueError(f"GRADCOMP_TESTS is '{_scope}'; allowed are default and full")

FULL = _scope == "full"


def by_scope(default: int, full: int) -> int:
    """The number of examples, steps or cases of this run."""
    return full if FULL else default
