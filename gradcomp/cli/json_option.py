"""The option ``--json``, apart from those that need the compiled core."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["JsonOption"]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
