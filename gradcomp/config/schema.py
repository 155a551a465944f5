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
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from gradcomp.codec import spec as specs
from gradcomp.codec.spec import Spec, Stage
from gradcomp.config.compose import VERSION, KeyPath, compose, format_path
from gradcomp.config.plan import (
    EXCHANGE_FORM,
    PLAN_FORM,
    Exchange,
    Resolution,
    SpecPhase,
    SpecSchedule,
    StrictModel,
    corrects_momentum,
)
from gradcomp.errors import ConfigError, SpecError
from gradcomp.exchange.memory import MOMENTUM_CORRECTION
from gradcomp.exchange.select import exchange_refusal, pattern_between_nodes

__all__ = [
    "FOREIGN_SECTIONS",
    "VERSION",
    "Compress",
    "Config",
    "Match",
    "Rule",
    "load_config",
    "load_mapping",
]

FOREIGN_SECTIONS = frozenset(
    {
        "train",  # scripts/train.py
        "gossip",
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


def _path(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str) and value else value


class Match(StrictModel):
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


class Rule(StrictModel):
    """One entry of ``compress.rules``: tensors that ``match`` use the spec ``use``."""

    match: Match = Field(description='a mapping such as {name: "*.bias"}; {} takes every tensor')
    use: SpecSchedule = Field(description=PLAN_FORM)
    exchange: Exchange | None = Field(
        default=None, description=f"{EXCHANGE_FORM}; that of compress.exchange if left out"
    )


DEFAULT_BUCKET_BYTES = 4 * 2**20
"""Enough to hide what each exchange costs, and little enough to begin during the backward pass."""


class Compress(StrictModel):
    """The ``compress`` section: rules tried in order, then the default rules, then ``default``."""

    default: SpecSchedule = Field(description=PLAN_FORM)
    rules: tuple[Rule, ...] = Field(default=(), description="a list of {match: ..., use: ...}")
    bucket_bytes: StrictInt = Field(
        default=DEFAULT_BUCKET_BYTES,
        ge=0,
        description="an integer >= 0: bytes of float32 gradients that travel together",
    )
    exchange: Exchange = Field(default="auto", description=EXCHANGE_FORM)
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
        with_it = [spec for spec in all_specs if corrects_momentum(spec)]
        without = [spec for spec in all_specs if not corrects_momentum(spec)]
        if with_it and without:
            raise ValueError(
                f"'{with_it[0]}' applies the optimizer's momentum, so the optimizer must not, and "
                f"tensors of '{without[0]}' would go without: put {MOMENTUM_CORRECTION} before all "
                f"specs or none, for dense tensors as '{MOMENTUM_CORRECTION}|identity'"
            )
        return self


class StatsSection(StrictModel):
    """The ``stats`` section: what is measured while a job trains."""

    profile: Annotated[Path | None, BeforeValidator(_path)] = Field(
        default=None, description="the path of a folder, to which each rank writes its profile"
    )
    error: StrictBool = Field(
        default=False, description="true or false; true needs stats.profile, too"
    )

    @model_validator(mode="after")
    def _written(self) -> StatsSection:
        if self.error and self.profile is None:
            raise ValueError("errors are a part of profiles: set stats.profile to a folder, too")
        return self


DEFAULT_RULES = {"ndim <= 1": Match(ndim=(0, 1)), "numel < 4096": Match(max_numel=4095)}
"""Tried in this order after ``compress.rules``: small tensors gain nothing from compression."""


class Config(StrictModel):
    """A whole configuration. Build it with :func:`load_config` or :meth:`from_spec`."""

    version: StrictInt = Field(
        ge=VERSION, le=VERSION, description=f"{VERSION}; add `version: {VERSION}`"
    )
    compress: Compress = Field(description="a mapping such as {default: fp16}")
    stats: StatsSection = Field(
        default=StatsSection(), description="a mapping such as {profile: runs/profile}"
    )
    seed: StrictInt = Field(
        default=0, ge=0, le=2**64 - 1, description="an integer in [0, 18446744073709551615]"
    )

    @classmethod
    def from_spec(cls, spec: str | Spec) -> Config:
        """The configuration that uses ``spec`` for every tensor the default rules leave.

        Raises SpecError when ``spec`` does not parse.
        """
        parsed = specs.parse(spec) if isinstance(spec, str) else spec
        return cls(version=VERSION, compress=Compress(default=SpecSchedule.of(parsed)))

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
                return Resolution(f"default rule: {label}", SpecSchedule.of(self.compress.small))
        return default

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The specs written here: the default's, then those of the rules."""
        return tuple(spec for _, spec, _ in self.compress.choices)

    @property
    def momentum_correction(self) -> Stage | None:
        """The memory that applies the optimizer's momentum, if the default has it."""
        first = self.compress.default.specs[0]
        return first.memory if corrects_momentum(first) else None

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
        plugins = {row.name: row.version for spec in self.specs for row in spec.plugins}
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
            **({"plugins": plugins} if plugins else {}),
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _digest(plan: SpecSchedule) -> str | list[dict[str, object]]:
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


def _section(path: Sequence[object]) -> type[StrictModel]:
    """The model of the mapping at ``path``."""
    names = [part for part in path if isinstance(part, str)]
    sections: dict[str, type[StrictModel]] = {
        "compress": Compress,
        "stats": StatsSection,
        "default": SpecPhase,
        "rules": Rule,
        "match": Match,
        "use": SpecPhase,
    }
    return sections[names[-1]] if names else Config


def _unknown_key(key: str, known: list[str]) -> str:
    if "=" in key or ")" in key:
        return 'unknown key; inside { } quote a spec that holds a comma, as in "topk(k=1,...)"'
    near = difflib.get_close_matches(key, known, n=1)
    guess = f", did you mean {near[0]!r}?" if near else ""
    return f"unknown key{guess} (known keys: {', '.join(known)})"
