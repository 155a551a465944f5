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
    if not isinstance(value, str) or not value:
        return value
    if "\0" in value:
        raise ValueError("no path holds a NUL character")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError("no such user") from error


ExpandedPath = Annotated[Path | None, BeforeValidator(_expanded)]
"""A path in which ``~`` means the home folder."""
