"""The ``outer`` section of a configuration: training with outer steps; docs/outer.md."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, StrictBool, StrictInt

from training.settings.section import Number, Section

__all__ = ["OuterSettings"]


class OuterSettings(Section):
    """The arguments of ``OuterStep``; its defaults depend on the compression."""

    section = "outer"
    example = "{every: 30}"

    every: StrictInt = Field(30, ge=1, description="an integer >= 1, in steps")
    lr: Number | None = Field(None, gt=0, le=10, description="a number in (0, 10]")
    momentum: Number | None = Field(None, ge=0, lt=1, description="a number in [0, 1)")
    nesterov: StrictBool = Field(True, description="true or false")
    fragments: StrictInt = Field(1, ge=1, description="an integer >= 1, a divisor of every")
    pattern: Literal["strided", "sequential"] = Field(
        "strided", description="strided or sequential"
    )
    overlap: StrictInt = Field(0, ge=0, description="an integer >= 0, below every / fragments")
    mixing: Number = Field(0.0, ge=0, le=1, description="a number in [0, 1]")

    def arguments(self) -> dict[str, Any]:
        """For ``OuterStep``."""
        return dict(self)
