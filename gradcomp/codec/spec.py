"""Specs: a memory, and a codec or an algorithm, with their parameters.

The grammar and the table of stages live in the C++ core (``csrc/stages``); ``docs/spec-grammar.md``
describes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

from gradcomp import _core
from gradcomp.codec.plugins import discover
from gradcomp.codec.stage_names import explained
from gradcomp.errors import SpecError

__all__ = ["END", "ParamInfo", "Spec", "Stage", "StageInfo", "parse", "stages"]

END = 2**62
"""A step or an epoch after which no schedule changes anything."""

Kind = Literal["preset", "memory", "transform", "codec", "algorithm", "coder"]
Param = float | int | bool | str | list[float]


@dataclass(frozen=True)
class Stage:
    """One stage of a spec, with defaults filled in."""

    name: str
    kind: Kind
    text: str
    params: Mapping[str, Param]


@dataclass(frozen=True)
class Spec:
    """A checked spec.

    Attributes:
        canonical: the whole spec with sorted keys, defaults filled in and no spaces. Equal
            canonical texts mean equal behaviour.
        stages: its stages, left to right.
        by_steps: a parameter has a schedule that counts steps.
        by_epochs: a parameter has a schedule that counts epochs.
        steps_end: the step from which no schedule that counts steps changes a parameter.
    """

    canonical: str
    # Fields that follow from the canonical text are not compared.
    stages: tuple[Stage, ...] = field(compare=False)
    by_steps: bool = field(default=False, compare=False)
    by_epochs: bool = field(default=False, compare=False)
    steps_end: int = field(default=0, compare=False)

    @cached_property
    def memory(self) -> Stage | None:
        """The memory stage, if the spec has one."""
        return self.stages[0] if self.stages[0].kind == "memory" else None

    @cached_property
    def algorithm(self) -> Stage | None:
        """The algorithm that replaces the codec, if the spec has one."""
        return self.stages[-1] if self.stages[-1].kind == "algorithm" else None

    @cached_property
    def codec(self) -> str:
        """The canonical text without the memory, for `gradcomp.get_codec`.

        `gradcomp.get_codec` refuses the text of an algorithm.
        """
        return "|".join(stage.text for stage in self.stages if stage.kind != "memory")

    @property
    def first_codec(self) -> str:
        """The codec's text as `codec`, in the first step: without schedules."""
        return self.at(0, 0).codec

    @property
    def stateful(self) -> bool:
        """Whether state is kept between steps: by a memory, or by an algorithm."""
        return self.memory is not None or self.algorithm is not None

    @property
    def scales_lr(self) -> bool:
        """Whether a residual is scaled by the learning rate: of a memory, or of an algorithm."""
        return any(
            stage.params.get("lr") == "scale"
            for stage in self.stages
            if stage.kind in ("memory", "algorithm")
        )

    @property
    def scheduled(self) -> bool:
        """Whether a parameter changes during training."""
        return self.by_steps or self.by_epochs

    @property
    def plugins(self) -> tuple[StageInfo, ...]:
        """The stages that are codecs of plug-ins."""
        names = {stage.name for stage in self.stages}
        rows = _stages(_core.stage_count())
        return tuple(row for row in rows if row.origin != "core" and row.name in names)

    def at(self, step: int, epoch: int) -> Spec:
        """The spec at a step of an epoch, both counted from 0: without schedules."""
        return parse(_core.spec_at(self.canonical, step, epoch)) if self.scheduled else self

    def steady(self, step: int, epoch: int) -> Spec | None:
        """As `at`, if no later step of this epoch has another one; else None."""
        return self.at(step, epoch) if step >= self.steps_end else None

    @property
    def short(self) -> str:
        """The shortest text of this spec: without parameters that have their defaults."""
        return _short(self.canonical)

    def __str__(self) -> str:
        return self.canonical


@dataclass(frozen=True)
class ParamInfo:
    """One parameter of a stage; ``default`` is None if there is no default."""

    name: str
    type: Literal["real", "integer", "boolean", "choice", "list"]
    default: str | None
    range: str
    doc: str


@dataclass(frozen=True)
class StageInfo:
    """One row of the registry.

    Attributes:
        id: the codec id of its frames; 0 for all but codecs.
        nonfinite: treatment of NaN and Inf.
        example: a valid spec; of a codec or an algorithm, without other stages.
        exactly_one_of: a spec must give exactly one of these parameters.
        origin: "core"; for a plug-in's codec "library" or "python".
        version: version of a plug-in's codec; else 0.
    """

    name: str
    kind: Kind
    id: int
    summary: str
    paper: str
    nonfinite: str
    example: str
    exactly_one_of: tuple[str, ...]
    params: tuple[ParamInfo, ...]
    origin: Literal["core", "library", "python"]
    version: int


def parse(spec: str) -> Spec:
    """Parse and check a spec such as ``"residual|topk(ratio=0.01)"``.

    Raises:
        SpecError: with the position of the mistake, what is allowed there, and the nearest known
            name.
        TypeError: ``spec`` is not a string.
    """
    return _parse(checked_text(spec))


@lru_cache(maxsize=1024)
def _short(canonical: str) -> str:
    stages = [(stage.name, _arguments(stage.text)) for stage in parse(canonical).stages]

    def text() -> str:
        return "|".join(
            name + (f"({','.join(arguments)})" if arguments else "") for name, arguments in stages
        )

    for _, arguments in stages:
        for place in reversed(range(len(arguments))):
            left_out = arguments.pop(place)
            try:
                same = parse(text()).canonical == canonical
            except SpecError:
                same = False
            if not same:
                arguments.insert(place, left_out)
    return text()


def _arguments(stage: str) -> list[str]:
    """The arguments of a stage's canonical text, such as ``k=v``; values may have parentheses."""
    arguments, depth = [""], 0
    for character in stage.partition("(")[2].removesuffix(")"):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += character
    return arguments if arguments != [""] else []


def checked_text(spec: str) -> str:
    """Check that ``spec`` is a string, and replace characters that error texts cannot show.

    Raises:
        TypeError: it is not a string.
    """
    if not isinstance(spec, str):
        raise TypeError(
            f"a spec is a string such as 'topk(ratio=0.01)', not of type {type(spec).__name__}"
        )
    return spec.encode(errors="replace").decode()  # lone surrogates, as from a damaged argument


@lru_cache(maxsize=1024)
def _parse(spec: str) -> Spec:
    canonical, rows, by_steps, by_epochs, steps_end = _read(spec)
    return Spec(canonical, tuple(Stage(*row) for row in rows), by_steps, by_epochs, steps_end)


def _read(spec: str) -> tuple[str, list[tuple[Any, ...]], bool, bool, int]:
    with suppress(SpecError):
        return _core.parse_spec(spec)
    discover()  # the spec may name a plug-in's codec
    try:
        return _core.parse_spec(spec)
    except SpecError as error:
        names = [row["name"] for row in _core.stages()]
        problem = explained(str(error), names, _core.plugin_faults())
    # Alone: the core's error has the same text.
    raise SpecError(problem)


def stages() -> tuple[StageInfo, ...]:
    """Every stage that a spec may name, in the order of the registry."""
    discover()
    return _stages(_core.stage_count())


@lru_cache(maxsize=1)
def _stages(count: int) -> tuple[StageInfo, ...]:
    return tuple(
        StageInfo(
            **{
                **row,
                "exactly_one_of": tuple(row["exactly_one_of"]),
                "params": tuple(ParamInfo(**param) for param in row["params"]),
            }
        )
        for row in _core.stages()
    )
