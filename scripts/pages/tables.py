"""Specs in tables: GitHub wants ``\\|`` in a cell's code, and Python-Markdown shows that backslash."""

from __future__ import annotations

import re
from typing import Any

_CODE = re.compile(r"`[^`]+`")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs' hook: the page with ``|`` for ``\\|`` in the code of table rows."""
    return "\n".join(
        _CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line
        for line in markdown.split("\n")
    )
