"""Schedules of specs: the specs that tensors of a rule use, one after the other."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    StrictInt,
    StrictStr,
    model_validator,
)

from gradcomp.codec import spec as specs
from gradcomp.codec.spec import Spec
from gradcomp.config.fields import StrictModel
from gradcomp.exchange.averaging import MEAN, Averaging
from gradcomp.exchange.memory import MOMENTUM_CORRECTION
from gradcomp.exchange.select import EXCHANGES, FLAT_EXCHANGES

__all__ = [
    "EXCHANGE_FORM",
    "SCHEDULE_FORM",
    "SPEC_FORM",
    "Exchange",
    "Resolution",
    "SpecField",
    "SpecPhase",
    "SpecSchedule",
    "corrects_momentum",
]

SPEC_FORM = 'a spec string such as "residual|topk(ratio=0.01)"; `gradcomp list` shows the stages'
SCHEDULE_FORM = f"{SPEC_FORM}; or a list of specs such as [fp16, {{from_step: 1000, use: bf16}}]"


def _to_spec(value: object) -> Spec:
    if isinstance(value, Spec):
        return value
    if not isinstance(value, str):
        raise ValueError("not a string")
    return specs.parse(value)


def corrects_momentum(spec: Spec) -> bool:
    """Whether the memory of ``spec`` applies the optimizer's momentum."""
    return spec.memory is not None and spec.memory.name == MOMENTUM_CORRECTION


SpecField = Annotated[Spec, BeforeValidator(_to_spec)]


def _exchange(value: str) -> str:
    if value not in EXCHANGES:
        raise ValueError("unknown")
    return value


Exchange = Annotated[StrictStr, AfterValidator(_exchange)]

EXCHANGE_FORM = (
    f"{', '.join(FLAT_EXCHANGES)}, two_level, or two_level(PATTERN) such as {EXCHANGES[-2]}"
)


class SpecPhase(StrictModel):
    """A spec and its beginning; without ``from_step`` and ``from_epoch`` it begins at the start.

    Steps are counted for each tensor: the number of earlier averages in the whole training.
    """

    use: SpecField = Field(description=SPEC_FORM)
    from_step: StrictInt | None = Field(default=None, ge=1, description="an integer >= 1")
    from_epoch: StrictInt | None = Field(default=None, ge=1, description="an integer >= 1")
    exchange: Exchange | None = Field(
        default=None, description=f"{EXCHANGE_FORM}; the rule's if left out"
    )
    state: Literal["carry", "drop"] = Field(
        default="carry",
        description="carry or drop: whether the state of the spec before goes on",
    )

    @property
    def begin(self) -> tuple[str, int]:
        """The unit, ``"step"`` or ``"epoch"``, and the number; ``("", 0)`` for the start."""
        for unit, value in (("step", self.from_step), ("epoch", self.from_epoch)):
            if value is not None:
                return unit, value
        return "", 0


class SpecSchedule(RootModel[tuple[SpecPhase, ...]]):
    """The specs that the tensors of a rule use: one, or several that follow one another.

    In a configuration: a spec, or a list of a spec and `SpecPhase` s.
    """

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            return [{"use": entry} if isinstance(entry, str | Spec) else entry for entry in value]
        return [SpecPhase(use=_to_spec(value))]

    @model_validator(mode="after")
    def _in_order(self) -> SpecSchedule:
        if not self.phases:
            raise ValueError("the list is empty")
        first, *later = self.phases
        if first.begin != ("", 0) or first.state != "carry":
            raise ValueError("the first spec holds from the start: give it alone")
        last = 0
        for phase in later:
            if (phase.from_step is None) == (phase.from_epoch is None):
                raise ValueError(
                    f"'{phase.use}' needs from_step or from_epoch, and not both, to say when it "
                    "begins"
                )
            unit, begin = phase.begin
            if unit != later[0].begin[0]:
                raise ValueError("from_step and from_epoch do not mix: give all in one of them")
            if begin <= last:
                raise ValueError(
                    f"from_{unit}: {begin} does not come after {last}: list them in order"
                )
            last = begin
        memories = {
            spec.memory.text for spec in self.specs if spec.memory and corrects_momentum(spec)
        }
        if len(memories) > 1:
            raise ValueError(
                f"{' and '.join(sorted(memories))} differ, and the optimizer's momentum does not "
                "change on the way: give one of them to all"
            )
        return self

    @classmethod
    def of(cls, spec: Spec) -> SpecSchedule:
        """One spec from the start to the end."""
        return cls((SpecPhase(use=spec),))

    @property
    def phases(self) -> tuple[SpecPhase, ...]:
        """The phases, in order; the first begins at the start."""
        return self.root

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The specs of the phases, in order."""
        return tuple(phase.use for phase in self.phases)

    @property
    def stateful(self) -> bool:
        """Whether any spec keeps state between steps."""
        return any(spec.stateful for spec in self.specs)

    @property
    def switches(self) -> bool:
        """Whether there is more than one phase."""
        return len(self.phases) > 1

    @property
    def by_epochs(self) -> bool:
        """Whether phases begin with epochs instead of steps."""
        return self.phases[-1].from_epoch is not None

    def at(self, step: int, epoch: int) -> SpecPhase:
        """The phase of a step of an epoch, both counted from 0."""
        now = epoch if self.by_epochs else step
        return next(phase for phase in reversed(self.phases) if phase.begin[1] <= now)

    @property
    def canonical(self) -> str:
        """The canonical text of the first spec, then beginning and text of each other one."""
        texts = [self.phases[0].use.canonical]
        for phase in self.phases[1:]:
            unit, begin = phase.begin
            texts.append(f"from {unit} {begin} {phase.use.canonical}")
        return ", ".join(texts)

    def __str__(self) -> str:
        return self.canonical


class Resolution(NamedTuple):
    """The schedule, exchange pattern and averaging of a tensor, and the rule that chose them.

    ``rule`` is a key path (``compress.rules[0]``, ``compress.default``) or the name of a
    default rule (``default rule: ndim <= 1``).
    """

    rule: str
    schedule: SpecSchedule
    exchange: Exchange = "auto"
    averaging: Averaging = MEAN

    @property
    def spec(self) -> Spec:
        """The spec of the first step."""
        return self.schedule.phases[0].use
