"""The key ``compress.prior``: predictions that spare the policy ``auto`` some of its trials."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Annotated

from pydantic import Field, StrictInt

from gradcomp.config.fields import StrictModel
from gradcomp.config.spec_schedule import EXCHANGE_FORM, SPEC_FORM, Exchange, SpecField

__all__ = ["Prediction", "Prior"]

_SECONDS_FORM = "a number of seconds above 0 and below 1e9"

Seconds = Annotated[float, Field(strict=True, gt=0, lt=1e9, allow_inf_nan=False)]


class Prediction(StrictModel):
    """Predicted seconds of a step in which one group's gradients alone travel, by choice.

    The group has ``numel`` as one of its tensors' numbers of elements; docs/policy.md has its limits.
    """

    use: SpecField = Field(description=SPEC_FORM)
    exchange: Exchange = Field(default="auto", description=EXCHANGE_FORM)
    numel: StrictInt = Field(ge=1, lt=2**63, description="an integer in [1, 9223372036854775807]")
    dense: Seconds = Field(description=_SECONDS_FORM)
    fp16: Seconds | None = Field(
        default=None, description=f"{_SECONDS_FORM}; left out if the group has no such choice"
    )
    compressed: Seconds = Field(description=_SECONDS_FORM)


class Prior(StrictModel):
    """Predictions for jobs of ``ranks`` ranks; on other numbers of ranks they have no effect."""

    ranks: StrictInt = Field(ge=1, description="an integer >= 1: ranks of the predicted job")
    groups: tuple[Prediction, ...] = Field(
        description="a list such as [{use: fp16, numel: 65536, dense: 0.2, compressed: 0.1}]"
    )

    @property
    def digest(self) -> str:
        """Equal on two ranks exactly when they have the same predictions."""
        groups = [
            {**group.model_dump(exclude={"use"}), "use": group.use.canonical}
            for group in self.groups
        ]
        text = json.dumps([self.ranks, groups], sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()
