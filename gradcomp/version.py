"""The version of the installed package."""

from __future__ import annotations

from functools import cache

__all__ = ["installed_version"]


@cache
def installed_version() -> str:
    """The version, such as ``0.1.0``."""
    from importlib.metadata import version  # slow to import, and rarely needed

    return version("gradcomp")
