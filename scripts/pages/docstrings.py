"""Docstrings as Markdown, for the pages of the API; an extension of griffe.

Their blocks of code follow ``::``, as in reStructuredText. In Markdown the indentation is enough.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["PlainBlocks"]

_MARK = re.compile(r"^::$|(?<=:) ::$|(?<=:):$", re.MULTILINE)


class PlainBlocks(griffe.Extension):  # type: ignore[misc]
    """Leaves the marks of blocks out."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change a docstring; griffe calls it for each object that it has loaded."""
        if obj.docstring is not None:
            obj.docstring.value = _MARK.sub("", obj.docstring.value)
