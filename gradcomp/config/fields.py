"""Building blocks of the models that validate configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

__all__ = ["ExpandedPath", "StrictModel"]


class StrictModel(BaseModel):
    """Immutable, and strict about keys and types.

    The description of a field gives its allowed values; error messages quote it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


def _expanded(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str) and value else value


ExpandedPath = Annotated[Path | None, BeforeValidator(_expanded)]
"""A path in which ``~`` means the home folder."""
