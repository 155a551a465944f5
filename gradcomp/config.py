"""Configuration: which spec compresses which tensor.

A configuration is a YAML mapping (or several, composed left to right) with a
``compress`` section, a ``seed`` and a ``version``; docs/configuration.md lists every
key. Every error is a :class:`~gradcomp.errors.ConfigError` naming the file, the key,
the value, what is allowed and the remedy.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from gradcomp import spec as specs
from gradcomp.aggregators import EXCHANGES, FLAT_EXCHANGES, exchange_refusal, pattern_between_nodes
from gradcomp.compose import VERSION, KeyPath, compose, format_path
from gradcomp.errors import ConfigError, SpecError
from gradcomp.memory import MOMENTUM_CORRECTION
from gradcomp.spec import Spec, Stage

__all__ = [
    "FOREIGN_SECTIONS",
    "VERSION",
    "Compress",
    "Config",
    "Match",
    "Phase",
    "Plan",
    "Resolution",
    "Rule",
    "load_config",
    "load_mapping",
]

FOREIGN_SECTIONS = frozenset(
    {
        "train",  # scripts/train.py
        # What Horovod 0.28 reads from the same file (horovodrun --config-file).
        "autotune",
        "controller",
        "library_options",
        "logging",
        "params",
        "stall_check",
        "timeline",
    }
)
"""Top-level keys that others own: they compose like any other and are not validated here."""

_SPEC = 'a spec string such as "residual|topk(ratio=0.01)"; `gradcomp list` shows the stages'


def _to_spec(value: object) -> Spec:
    if isinstance(value, Spec):
        return value
    if not isinstance(value, str):
        raise ValueError("not a string")
    return specs.parse(value)


def _corrects(spec: Spec) -> bool:
    return spec.memory is not None and spec.memory.name == MOMENTUM_CORRECTION


SpecField = Annotated[Spec, BeforeValidator(_to_spec)]


def _exchange(value: str) -> str:
    if value not in EXCHANGES:
        raise ValueError("unknown")
    return value


Exchange = Annotated[StrictStr, AfterValidator(_exchange)]

_EXCHANGE = f"{', '.join(FLAT_EXCHANGES)}, two_level, or two_level(PATTERN) such as {EXCHANGES[-2]}"


class _Model(BaseModel):
    """Immutable, and strict about keys and types.

    The description of a field says what is allowed there; error messages quote it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


class Match(_Model):
    """The tensors a rule takes: those that meet every condition given.

    A match without conditions takes every tensor.
    """

    name: StrictStr | None = Field(
        default=None, description='a glob for the whole tensor name, such as "*.bias"'
    )
    regex: StrictStr | None = Field(
        default=None,
        description=r'a Python regular expression, searched in the name, such as "^fc\."',
    )
    min_numel: StrictInt | None = Field(default=None, ge=0, description="an integer >= 0")
    max_numel: StrictInt | None = Field(default=None, ge=0, description="an integer >= 0")
    ndim: tuple[Annotated[StrictInt, Field(ge=0)], ...] | None = Field(
        default=None, description="an integer >= 0, or a list of them"
    )

    @field_validator("regex")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(str(error)) from None
        return value

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
            raise ValueError("min_numel is above max_numel, so no tensor matches")
        return self

    def matches(self, name: str, shape: Sequence[int]) -> bool:
        """Whether the tensor ``name`` of ``shape`` meets every condition given."""
        numel = math.prod(shape)
        return (
            (self.name is None or fnmatch.fnmatchcase(name, self.name))
            and (self.regex is None or re.search(self.regex, name) is not None)
            and (self.min_numel is None or numel >= self.min_numel)
            and (self.max_numel is None or numel <= self.max_numel)
            and (self.ndim is None or len(shape) in self.ndim)
        )


class Phase(_Model):
    """A spec, and from when on it holds; without ``from_step`` and ``from_epoch``, from the start.

    Steps are those of the tensor: how often it was averaged before, in the whole training.
    """

    use: SpecField = Field(description=_SPEC)
    from_step: StrictInt | None = Field(default=None, ge=1, description="an integer >= 1")
    from_epoch: StrictInt | None = Field(default=None, ge=1, description="an integer >= 1")
    exchange: Exchange | None = Field(
        default=None, description=f"{_EXCHANGE}; that of the rule if left out"
    )
    state: Literal["carry", "drop"] = Field(
        default="carry",
        description="carry or drop: what becomes of the state of the spec before",
    )

    @property
    def begin(self) -> tuple[str, int]:
        """The unit, ``"step"`` or ``"epoch"``, and the number; ``("", 0)`` for the start."""
        for unit, value in (("step", self.from_step), ("epoch", self.from_epoch)):
            if value is not None:
                return unit, value
        return "", 0


class Plan(RootModel[tuple[Phase, ...]]):
    """What the tensors of a rule use: one spec, or several that follow one another.

    In a configuration a spec, or a list of a spec and `Phase` s.
    """

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            return [{"use": one} if isinstance(one, str | Spec) else one for one in value]
        return [Phase(use=_to_spec(value))]

    @model_validator(mode="after")
    def _in_order(self) -> Plan:
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
        memories = {spec.memory.text for spec in self.specs if spec.memory and _corrects(spec)}
        if len(memories) > 1:
            raise ValueError(
                f"{' and '.join(sorted(memories))} differ, and the optimizer's momentum does not "
                "change on the way: give one of them to all"
            )
        return self

    @classmethod
    def of(cls, spec: Spec) -> Plan:
        """One spec from the start to the end."""
        return cls((Phase(use=spec),))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """In their order."""
        return self.root

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Those of the phases."""
        return tuple(phase.use for phase in self.phases)

    @property
    def stateful(self) -> bool:
        """Whether any of them keeps state between steps."""
        return any(spec.stateful for spec in self.specs)

    @property
    def switches(self) -> bool:
        """Whether there are several."""
        return len(self.phases) > 1

    @property
    def by_epochs(self) -> bool:
        """Whether the epoch decides which spec holds."""
        return self.phases[-1].from_epoch is not None

    def at(self, step: int, epoch: int) -> Phase:
        """What holds in a step of an epoch, both counted from 0."""
        now = epoch if self.by_epochs else step
        return next(phase for phase in reversed(self.phases) if phase.begin[1] <= now)

    @property
    def canonical(self) -> str:
        """One spec's canonical text, or those of all with their beginnings."""
        texts = [self.phases[0].use.canonical]
        for phase in self.phases[1:]:
            unit, begin = phase.begin
            texts.append(f"from {unit} {begin} {phase.use.canonical}")
        return ", ".join(texts)

    def __str__(self) -> str:
        return self.canonical


class Resolution(NamedTuple):
    """What a tensor takes with its exchange pattern, and what chose it.

    ``rule`` is a key path (``compress.rules[0]``, ``compress.default``) or the name of a
    default rule (``default rule: ndim <= 1``).
    """

    rule: str
    plan: Plan
    exchange: Exchange = "auto"

    @property
    def spec(self) -> Spec:
        """The spec of the first step."""
        return self.plan.phases[0].use


_PLAN = f"{_SPEC}; or a list of specs such as [fp16, {{from_step: 1000, use: bf16}}]"


class Rule(_Model):
    """One entry of ``compress.rules``: tensors that ``match`` use the spec ``use``."""

    match: Match = Field(description='a mapping such as {name: "*.bias"}; {} takes every tensor')
    use: Plan = Field(description=_PLAN)
    exchange: Exchange | None = Field(
        default=None, description=f"{_EXCHANGE}; that of compress.exchange if left out"
    )


DEFAULT_BUCKET_BYTES = 4 * 2**20
"""Enough to hide what each exchange costs, and little enough to begin during the backward pass."""


class Compress(_Model):
    """The ``compress`` section: rules tried in order, then the default rules, then ``default``."""

    default: Plan = Field(description=_PLAN)
    rules: tuple[Rule, ...] = Field(default=(), description="a list of {match: ..., use: ...}")
    bucket_bytes: StrictInt = Field(
        default=DEFAULT_BUCKET_BYTES,
        ge=0,
        description="an integer >= 0: bytes of float32 gradients that travel together",
    )
    exchange: Exchange = Field(default="auto", description=_EXCHANGE)
    policy: Literal["always", "auto"] = Field(default="always", description="always or auto")
    ranks_per_node: StrictInt | None = Field(
        default=None,
        ge=1,
        description="an integer >= 1: consecutive ranks that two_level takes for a node, instead "
        "of those of a machine",
    )

    @property
    def plans(self) -> tuple[Resolution, ...]:
        """What is written: the default, then the rules."""
        return (
            Resolution("compress.default", self.default, self.exchange),
            *(
                Resolution(f"compress.rules[{index}]", rule.use, rule.exchange or self.exchange)
                for index, rule in enumerate(self.rules)
            ),
        )

    @property
    def choices(self) -> tuple[tuple[str, Spec, Exchange], ...]:
        """Where a spec is written, the spec and its exchange, in the order of `plans`."""
        return tuple(
            (f"{rule}[{index}]" if plan.switches else rule, phase.use, phase.exchange or exchange)
            for rule, plan, exchange in self.plans
            for index, phase in enumerate(plan.phases)
        )

    @property
    def two_level(self) -> bool:
        """Whether any gradients are averaged inside nodes first."""
        return any(pattern_between_nodes(exchange) is not None for *_, exchange in self.choices)

    @property
    def small(self) -> Spec:
        """What the tensors of the default rules take: none of them is compressed."""
        memory = self.default.specs[0].memory
        if memory is None or memory.name != MOMENTUM_CORRECTION:
            return specs.parse("identity")
        return specs.parse(f"{memory.text}|identity")

    @model_validator(mode="after")
    def _exchangeable(self) -> Compress:
        for label, spec, exchange in self.choices:
            refusal = exchange_refusal(spec, exchange)
            if refusal is not None:
                raise ValueError(f"{label} cannot take exchange: {exchange}: {refusal}")
        return self

    @model_validator(mode="after")
    def _momentum_everywhere(self) -> Compress:
        all_specs = [spec for _, spec, _ in self.choices]
        with_it = [spec for spec in all_specs if _corrects(spec)]
        without = [spec for spec in all_specs if not _corrects(spec)]
        if with_it and without:
            raise ValueError(
                f"'{with_it[0]}' applies the optimizer's momentum, so the optimizer must not, and "
                f"tensors of '{without[0]}' would go without: put {MOMENTUM_CORRECTION} before all "
                f"specs or none, for dense tensors as '{MOMENTUM_CORRECTION}|identity'"
            )
        return self


DEFAULT_RULES = {"ndim <= 1": Match(ndim=(0, 1)), "numel < 4096": Match(max_numel=4095)}
"""Tried in this order after ``compress.rules``: small tensors gain nothing from compression."""


class Config(_Model):
    """A whole configuration. Build it with :func:`load_config` or :meth:`from_spec`."""

    version: StrictInt = Field(
        ge=VERSION, le=VERSION, description=f"{VERSION}; add `version: {VERSION}`"
    )
    compress: Compress = Field(description="a mapping such as {default: fp16}")
    seed: StrictInt = Field(
        default=0, ge=0, le=2**64 - 1, description="an integer in [0, 18446744073709551615]"
    )

    @classmethod
    def from_spec(cls, spec: str | Spec) -> Config:
        """The configuration that uses ``spec`` for every tensor the default rules leave.

        Raises SpecError when ``spec`` does not parse.
        """
        return cls(version=VERSION, compress=Compress(default=Plan.of(_to_spec(spec))))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], *, source: str = "configuration") -> Config:
        """Validate a merged mapping, such as :func:`load_mapping` returns.

        ``source`` is what errors call it. Raises ConfigError.
        """
        return _validate(mapping, lambda _: source)

    def spec_for(self, name: str, shape: tuple[int, ...]) -> Spec:
        """The spec for the tensor ``name`` of ``shape`` in the first step."""
        return self.resolve(name, shape).spec

    def resolve(self, name: str, shape: tuple[int, ...]) -> Resolution:
        """What the tensor ``name`` of ``shape`` takes, with the rule that chose it."""
        default, *plans = self.compress.plans
        for plan, rule in zip(plans, self.compress.rules, strict=True):
            if rule.match.matches(name, shape):
                return plan
        for label, match in DEFAULT_RULES.items():
            if match.matches(name, shape):
                return Resolution(f"default rule: {label}", Plan.of(self.compress.small))
        return default

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The specs written here: the default's, then those of the rules."""
        return tuple(spec for _, spec, _ in self.compress.choices)

    @property
    def momentum_correction(self) -> Stage | None:
        """The memory that applies the optimizer's momentum, if the default has it."""
        first = self.compress.default.specs[0]
        return first.memory if _corrects(first) else None

    @property
    def stateful(self) -> bool:
        """Whether any spec here keeps state between steps, which checkpoints must then hold."""
        return any(spec.stateful for spec in self.specs)

    @property
    def switches(self) -> bool:
        """Whether any tensor's spec is followed by another one."""
        return any(plan.switches for _, plan, _ in self.compress.plans)

    def digest_text(self) -> str:
        """Canonical one-line JSON of all that decides the bytes sent.

        Equal on two ranks exactly when they compress alike; specs are in canonical form.
        """
        rules = [
            {
                "match": rule.match.model_dump(exclude_none=True),
                "use": _digest(rule.use),
                "exchange": exchange,
            }
            for rule, (_, _, exchange) in zip(
                self.compress.rules, self.compress.plans[1:], strict=True
            )
        ]
        nodes = self.compress.ranks_per_node
        content = {
            "compress": {
                "policy": self.compress.policy,
                "bucket_bytes": self.compress.bucket_bytes,
                "default": _digest(self.compress.default),
                "exchange": self.compress.exchange,
                "rules": rules,
                **({} if nodes is None else {"ranks_per_node": nodes}),
            },
            "seed": self.seed,
            "version": self.version,
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _digest(plan: Plan) -> str | list[dict[str, object]]:
    if not plan.switches:
        return plan.canonical
    return [
        {**phase.model_dump(exclude_none=True), "use": phase.use.canonical} for phase in plan.phases
    ]


def load_mapping(paths: Sequence[str | Path] = (), overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The merged mapping of ``paths`` and ``overrides``, sections of others included.

    ``paths`` are YAML files, composed left to right: mappings merge, anything else is
    replaced. ``overrides`` are texts ``dotted.key=value``, the value in YAML, applied
    after the files. Raises ConfigError; keys are checked by :meth:`Config.from_mapping`.
    """
    return compose(paths, overrides).mapping


def load_config(paths: Sequence[str | Path] = (), overrides: Sequence[str] = ()) -> Config:
    """The configuration in ``paths`` and ``overrides``, composed as in :func:`load_mapping`.

    Raises ConfigError naming the file (or override) and the key of every problem found.
    """
    composed = compose(paths, overrides)
    return _validate(composed.mapping, composed.origin)


def _validate(mapping: Mapping[str, Any], origin: Callable[[KeyPath], str]) -> Config:
    own = {key: value for key, value in mapping.items() if key not in FOREIGN_SECTIONS}
    try:
        return Config.model_validate(own)
    except ValidationError as error:
        problems = [
            f"{origin(problem['loc'])}: {format_path(problem['loc'])}: {_explain(problem)}"
            for problem in error.errors(include_url=False)
        ]
    raise ConfigError("\n".join(problems))


def _explain(problem: Mapping[str, Any]) -> str:
    """What is wrong at one key, what is allowed there and how to mend it."""
    *above, key = problem["loc"]
    if problem["type"] in ("extra_forbidden", "invalid_key"):
        section = _section(above)
        others = FOREIGN_SECTIONS if section is Config else ()
        return _unknown_key(str(key), sorted({*section.model_fields, *others}))
    *above, field = (part for part in problem["loc"] if isinstance(part, str))
    expected = _section(above).model_fields[field].description
    if problem["type"] == "missing":
        return f"missing; expected {expected}"
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, SpecError):
        return str(cause)
    got = f"got {reprlib.repr(problem['input'])}" + (f" ({cause})" if cause else "")
    return f"{got}; expected {expected}"


def _section(path: Sequence[object]) -> type[_Model]:
    """The model of the mapping at ``path``."""
    names = [part for part in path if isinstance(part, str)]
    sections: dict[str, type[_Model]] = {
        "compress": Compress,
        "default": Phase,
        "rules": Rule,
        "match": Match,
        "use": Phase,
    }
    return sections[names[-1]] if names else Config


def _unknown_key(key: str, known: list[str]) -> str:
    if "=" in key or ")" in key:
        return 'unknown key; inside { } quote a spec that holds a comma, as in "topk(k=1,...)"'
    near = difflib.get_close_matches(key, known, n=1)
    guess = f", did you mean {near[0]!r}?" if near else ""
    return f"unknown key{guess} (known keys: {', '.join(known)})"
