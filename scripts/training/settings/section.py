"""A section of the configuration, checked key by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, ConfigDict, ValidationError

from gradcomp.config.compose import KeyPath
from gradcomp.config.fields import StrictModel
from gradcomp.config.messages import config_error

__all__ = ["Number", "Section"]


def _number(value: object) -> object:
    # YAML 1.1 reads 1e-3 (no dot) as text; True is an int to Python.
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


Number = Annotated[float, BeforeValidator(_number)]


class Section(StrictModel):
    """Settings under one top-level key.

    Attributes:
        section: the key, which `gradcomp.config.sections` reserves.
        example: a valid mapping, for error messages.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    section: ClassVar[str]
    example: ClassVar[str]

    @classmethod
    def of(cls, values: object, origin: Callable[[KeyPath], str]) -> Self:
        """Validate the value of the key in a merged configuration.

        ``origin`` tells the file or override that set a key. Raises ConfigError naming every wrong
        key, its value, the allowed values and the remedy.
        """
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            failure = config_error(
                error,
                origin=origin,
                model_at=lambda _: cls,
                form=f"a mapping such as {cls.example}",
                at=(cls.section,),
            )
        else:
            settings.check_combinations()
            return settings
        raise failure

    def check_combinations(self) -> None:
        """Raise ConfigError for keys that contradict each other."""
