"""A section of the configuration, checked key by key."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from gradcomp.config.compose import KeyPath, format_path
from gradcomp.errors import ConfigError

__all__ = ["Number", "Section"]


def _number(value: object) -> object:
    # YAML 1.1 reads 1e-3 (no dot) as text; True is an int to Python.
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


Number = Annotated[float, BeforeValidator(_number)]


class Section(BaseModel):
    """Settings under one top-level key.

    The description of a field says what is allowed there; error messages quote it.

    Attributes:
        section: the key.
        example: what a mapping there may look like.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    section: ClassVar[str]
    example: ClassVar[str]

    @classmethod
    def of(cls, values: object, origin: Callable[[KeyPath], str]) -> Self:
        """Validate what stands under the key in a merged configuration.

        ``origin`` tells the file or override that set a key. Raises ConfigError naming every key
        that is wrong, its value, what is allowed and the remedy.
        """
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            problems = error.errors(include_url=False)
        else:
            settings.check_combinations()
            return settings
        lines = []
        for problem in problems:
            path: KeyPath = (cls.section, *problem["loc"])
            lines.append(f"{origin(path)}: {format_path(path)}: {cls._explain(problem)}")
        raise ConfigError("\n".join(lines))

    def check_combinations(self) -> None:
        """Raise ConfigError for keys that contradict each other."""

    @classmethod
    def _explain(cls, problem: Mapping[str, Any]) -> str:
        if not problem["loc"]:
            got = reprlib.repr(problem["input"])
            return f"got {got}; expected a mapping such as {cls.example}"
        key = str(problem["loc"][0])
        fields = cls.model_fields
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            guess = f"did you mean {near[0]!r}? " if near else ""
            return f"unknown key; {guess}Known keys: {', '.join(fields)}"
        expected = fields[key].description
        if problem["type"] == "missing":
            return f"missing; expected {expected}"
        return f"got {reprlib.repr(problem['input'])}; expected {expected}"
