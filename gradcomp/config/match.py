"""Conditions by which a rule of a configuration takes tensors."""

from __future__ import annotations

import fnmatch
import math
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

from pydantic import Field, StrictInt, StrictStr, field_validator, model_validator

from gradcomp.config.fields import StrictModel
from gradcomp.config.messages import CombinationError

__all__ = ["Match", "small_tensor_rules"]


class Match(StrictModel):
    """Conditions on tensors; a tensor must meet all that are given.

    A match without conditions takes every tensor.
    """

    name: StrictStr | None = Field(
        default=None, description='a glob for the whole tensor name, such as "*.bias"'
    )
    min_numel: StrictInt | None = Field(default=None, ge=0, description="an integer >= 0")
    max_numel: StrictInt | None = Field(default=None, ge=0, description="an integer >= 0")
    ndim: tuple[Annotated[StrictInt, Field(ge=0)], ...] | None = Field(
        default=None, description="an integer >= 0, or a list of them"
    )

    @model_validator(mode="before")
    @classmethod
    def _without_regex(cls, conditions: object) -> object:
        if isinstance(conditions, Mapping) and "regex" in conditions:
            raise CombinationError(
                f"regex: {reprlib.repr(conditions['regex'])}: rules take no regular expressions: "
                'use name with a glob of the whole tensor name, such as "conv*", in a rule for each glob'
            )
        return conditions

    @field_validator("ndim", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return (value,) if isinstance(value, int) else value

    @model_validator(mode="after")
    def _satisfiable(self) -> Match:
        if (
            self.min_numel is not None
            and self.max_numel is not None
            and self.min_numel > self.max_numel
        ):
            raise CombinationError(
                f"min_numel is {self.min_numel} and max_numel {self.max_numel}, so no tensor matches: "
                "give a lower min_numel"
            )
        return self

    def matches(self, name: str, shape: Sequence[int]) -> bool:
        """Whether the tensor ``name`` of ``shape`` meets every condition given."""
        numel = math.prod(shape)
        return (
            (self.name is None or fnmatch.fnmatchcase(name, self.name))
            and (self.min_numel is None or numel >= self.min_numel)
            and (self.max_numel is None or numel <= self.max_numel)
            and (self.ndim is None or len(shape) in self.ndim)
        )


_SMALL = {"ndim <= 1": Match(ndim=(0, 1)), "numel < 4096": Match(max_numel=4095)}
_SMALL_ADAPTIVE = {"numel < 64": Match(max_numel=63)}


def small_tensor_rules(codecs: Collection[str]) -> Mapping[str, Match]:
    """The rules that take small tensors, which gain nothing from compression, after ``compress.rules``.

    ``adaptive`` has one step of its quantizer for all tensors of a bucket, so elements of a vector are not rounded more
    coarsely than others, and a frame of about 50 bytes more than its symbols pays from 64 elements on.

    Args:
        codecs: the names of the last stages of ``compress.default``.
    """
    return _SMALL_ADAPTIVE if set(codecs) == {"adaptive"} else _SMALL
