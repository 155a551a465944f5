"""Configuration: which spec compresses which tensor.

A configuration is a YAML mapping (or several, composed left to right) with a
``compress`` section, a ``seed`` and a ``version``; docs/configuration.md lists every
key. Every error is a :class:`~gradcomp.errors.ConfigError` naming the file, the key,
the value, the allowed values and the remedy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)

from gradcomp.codec import spec as specs
from gradcomp.codec.spec import Spec, Stage
from gradcomp.config.compose import VERSION, KeyPath, compose
from gradcomp.config.fields import ExpandedPath, StrictModel
from gradcomp.config.match import Match, small_tensor_rules
from gradcomp.config.messages import CombinationError, config_error
from gradcomp.config.predictions import Prediction, Prior
from gradcomp.config.preset import AUTO, AUTO_SPEC, with_preset
from gradcomp.config.sections import RESERVED_SECTIONS
from gradcomp.config.spec_schedule import (
    EXCHANGE_FORM,
    SCHEDULE_FORM,
    Exchange,
    Resolution,
    SpecPhase,
    SpecSchedule,
    corrects_momentum,
)
from gradcomp.errors import ConfigError
from gradcomp.exchange.averaging import MEAN, Average, Averaging, Clip
from gradcomp.exchange.memory import EF21, MOMENTUM_CORRECTION
from gradcomp.exchange.select import (
    averaging_refusal,
    exchange_refusal,
    gives_steps,
    pattern_between_nodes,
)

__all__ = [
    "VERSION",
    "Compress",
    "Config",
    "Rule",
    "load_config",
    "load_mapping",
]


AVERAGE_FORM = "ranks or senders"
CLIP_FORM = "none or median_norm"


class Rule(StrictModel):
    """One entry of ``compress.rules``: tensors that ``match`` use the spec ``use``."""

    match: Match = Field(description='a mapping such as {name: "*.bias"}; {} takes every tensor')
    use: SpecSchedule = Field(description=SCHEDULE_FORM)
    exchange: Exchange | None = Field(
        default=None, description=f"{EXCHANGE_FORM}; compress.exchange if left out"
    )
    average: Average | None = Field(
        default=None, description=f"{AVERAGE_FORM}; compress.average if left out"
    )
    clip: Clip | None = Field(default=None, description=f"{CLIP_FORM}; compress.clip if left out")


DEFAULT_BUCKET_BYTES = 4 * 2**20
"""Large enough to hide the cost of each exchange, small enough to begin during the backward pass."""


class Compress(StrictModel):
    """The ``compress`` section: rules tried in order, then the default rules, then ``default``."""

    default: SpecSchedule = Field(description=f"{SCHEDULE_FORM}; auto if left out")
    rules: tuple[Rule, ...] = Field(default=(), description="a list of {match: ..., use: ...}")
    bucket_bytes: StrictInt = Field(
        default=DEFAULT_BUCKET_BYTES,
        ge=0,
        description="an integer >= 0: bytes of float32 gradients that travel together",
    )
    exchange: Exchange = Field(default="auto", description=EXCHANGE_FORM)
    average: Average = Field(default="ranks", description=AVERAGE_FORM)
    clip: Clip = Field(default="none", description=CLIP_FORM)
    policy: Literal["always", "auto"] = Field(default="always", description="always or auto")
    prior: Prior | None = Field(
        default=None,
        description="a mapping {ranks: ..., groups: [...]}, as `gradcomp advise --save` writes it",
    )
    # The host: residuals on a GPU would take as much of its memory as the gradients.
    device: Literal["auto", "direct", "host"] = Field(
        default="host", description="auto, direct or host"
    )
    encoder_thread: Literal["auto", "always", "never"] = Field(
        default="auto", description="auto, always or never"
    )
    ranks_per_node: StrictInt | None = Field(
        default=None,
        ge=1,
        description="an integer >= 1: consecutive ranks that two_level takes for a node, instead "
        "of the ranks of a machine",
    )

    @property
    def resolutions(self) -> tuple[Resolution, ...]:
        """The default, then the rules as written."""
        return (
            Resolution(
                "compress.default", self.default, self.exchange, Averaging(self.average, self.clip)
            ),
            *(
                Resolution(
                    f"compress.rules[{index}]",
                    rule.use,
                    rule.exchange or self.exchange,
                    Averaging(rule.average or self.average, rule.clip or self.clip),
                )
                for index, rule in enumerate(self.rules)
            ),
        )

    @property
    def choices(self) -> tuple[tuple[str, Spec, Exchange], ...]:
        """Key path, spec and exchange of every spec written here, in the order of `resolutions`."""
        return tuple(
            (
                f"{rule}[{index}]" if schedule.switches else rule,
                phase.use,
                phase.exchange or exchange,
            )
            for rule, schedule, exchange, _ in self.resolutions
            for index, phase in enumerate(schedule.phases)
        )

    @property
    def two_level(self) -> bool:
        """Whether any gradients are averaged inside nodes first."""
        return any(pattern_between_nodes(exchange) is not None for *_, exchange in self.choices)

    @property
    def default_rules(self) -> Mapping[str, Match]:
        """The rules between `rules` and `default`, by what they ask of a tensor."""
        return small_tensor_rules([spec.stages[-1].name for spec in self.default.specs])

    @property
    def small(self) -> Spec:
        """The spec of tensors that default rules take: uncompressed, with the default's momentum."""
        memory = self.default.specs[0].memory
        if memory is None or memory.name not in (MOMENTUM_CORRECTION, EF21):
            return specs.parse("identity")
        if memory.name == EF21 and not memory.params["momentum"]:
            return specs.parse("identity")
        return specs.parse(f"{memory.text}|identity")

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, section: Any) -> Any:
        return with_preset(section)

    @model_validator(mode="after")
    def _used(self) -> Compress:
        if self.prior is not None and self.policy != "auto":
            raise CombinationError(
                "prior spares trials of policy: auto, and the policy is always: set policy: auto, or "
                "leave prior out"
            )
        return self

    @model_validator(mode="after")
    def _exchangeable(self) -> Compress:
        for label, spec, exchange in self.choices:
            refusal = exchange_refusal(spec, exchange)
            if refusal is not None:
                raise CombinationError(f"{label} cannot take exchange: {exchange}: {refusal}")
        return self

    @model_validator(mode="after")
    def _averageable(self) -> Compress:
        for label, schedule, exchange, averaging in self.resolutions:
            for phase in schedule.phases:
                refusal = averaging_refusal(phase.use, phase.exchange or exchange, averaging)
                if refusal is not None:
                    raise CombinationError(f"{label} cannot take {averaging}: {refusal}")
            if averaging != MEAN and self.policy == "auto":
                raise CombinationError(
                    f"{label} has {averaging}, and policy: auto may choose a spec that cannot take it: "
                    "use policy: always"
                )
        return self

    @model_validator(mode="after")
    def _momentum_everywhere(self) -> Compress:
        all_specs = [spec for _, spec, _ in self.choices]
        with_it = [spec for spec in all_specs if corrects_momentum(spec)]
        without = [spec for spec in all_specs if not corrects_momentum(spec)]
        if with_it and without:
            raise CombinationError(
                f"'{with_it[0]}' applies the optimizer's momentum, so the optimizer must not, and "
                f"tensors of '{without[0]}' would go without: put {MOMENTUM_CORRECTION} before all "
                f"specs or none, for dense tensors as '{MOMENTUM_CORRECTION}|identity'"
            )
        return self


class StatsSection(StrictModel):
    """The ``stats`` section: measurements while a job trains."""

    profile: ExpandedPath = Field(
        default=None, description="the path of a folder, to which each rank writes its profile"
    )
    error: StrictBool = Field(
        default=False, description="true or false; true needs stats.profile, too"
    )

    @model_validator(mode="after")
    def _written(self) -> StatsSection:
        if self.error and self.profile is None:
            raise CombinationError(
                "errors are a part of profiles: set stats.profile to a folder, too"
            )
        return self


class Config(StrictModel):
    """A whole configuration. Build it with :func:`load_config` or :meth:`from_spec`."""

    version: StrictInt = Field(
        ge=VERSION, le=VERSION, description=f"{VERSION}; add `version: {VERSION}`"
    )
    compress: Compress = Field(
        default_factory=lambda: Compress.model_validate({}),
        description="a mapping such as {default: fp16}",
    )
    stats: StatsSection = Field(
        default=StatsSection(), description="a mapping such as {profile: runs/profile}"
    )
    seed: StrictInt = Field(
        default=0, ge=0, le=2**64 - 1, description="an integer in [0, 18446744073709551615]"
    )
    check_replicas_every: StrictInt = Field(
        default=0, ge=0, le=2**31 - 1, description="a number of steps, at least 0; 0 for never"
    )

    @classmethod
    def from_spec(cls, spec: str | Spec) -> Config:
        """The configuration that uses ``spec`` for every tensor that no default rule takes.

        ``auto`` is the preset of a configuration without ``compress.default``. Raises SpecError when
        ``spec`` does not parse.
        """
        if spec == AUTO:
            return cls(version=VERSION)
        parsed = specs.parse(spec) if isinstance(spec, str) else spec
        return cls(version=VERSION, compress=Compress(default=SpecSchedule.of(parsed)))

    @classmethod
    def of(cls, config: str | Config, *, measures: bool = True) -> Config:
        """A configuration, or the one of a spec for all tensors; see `from_spec`.

        Args:
            config: of the user.
            measures: whether the engine has `compress.policy: auto`; if not, the preset ``auto`` always
                compresses.

        Raises:
            SpecError: the spec is wrong.
            ConfigError: ``config`` is neither a spec nor a configuration.
        """
        if not isinstance(config, (str, cls)):
            raise ConfigError(
                f"a {type(config).__name__} is no configuration; expected a spec such as 'fp16', 'auto' for "
                "the preset, or a gradcomp.Config; give other arguments by their names"
            )
        found = cls.from_spec(config) if isinstance(config, str) else config
        compress = found.compress
        if measures or compress.policy != "auto":
            return found
        if str(compress.default) != specs.parse(AUTO_SPEC).canonical:
            return found
        always = compress.model_copy(update={"policy": "always"})
        return found.model_copy(update={"compress": always})

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], *, source: str = "configuration") -> Config:
        """Validate a merged mapping, such as :func:`load_mapping` returns.

        ``source`` is its name in errors. Raises ConfigError.
        """
        return _validate(mapping, lambda _: source)

    def spec_for(self, name: str, shape: tuple[int, ...]) -> Spec:
        """The spec for the tensor ``name`` of ``shape`` in the first step."""
        return self.resolve(name, shape).spec

    def resolve(self, name: str, shape: tuple[int, ...], default_rules: bool = True) -> Resolution:
        """Schedule and exchange of the tensor ``name`` of ``shape``, and the rule that chose them.

        Args:
            default_rules: whether default rules take small tensors; otherwise ``default`` takes them.
        """
        default, *written = self.compress.resolutions
        for resolution, rule in zip(written, self.compress.rules, strict=True):
            if rule.match.matches(name, shape):
                return resolution
        for label, match in self.compress.default_rules.items() if default_rules else ():
            if match.matches(name, shape):
                return Resolution(f"default rule: {label}", SpecSchedule.of(self.compress.small))
        return default

    def gives_steps(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether rounds of a tensor return steps of an optimizer: its specs have Dion or DeMo.

        Raises:
            ConfigError: only some of its specs do.
        """
        specs = self.resolve(name, shape).schedule.specs
        gives = {gives_steps(spec) for spec in specs}
        if len(gives) > 1:
            raise ConfigError(
                f"'{name}' has the specs {', '.join(map(repr, map(str, specs)))}: "
                "all or none must give finished steps, since the optimizer's state does not change "
                "with them"
            )
        return gives.pop()

    @property
    def specs(self) -> tuple[Spec, ...]:
        """All specs written here: of the default, then of the rules."""
        return tuple(spec for _, spec, _ in self.compress.choices)

    @property
    def momentum_correction(self) -> Stage | None:
        """The memory that applies the optimizer's momentum, if the default has it."""
        first = self.compress.default.specs[0]
        return first.memory if corrects_momentum(first) else None

    @property
    def step_algorithm(self) -> Stage | None:
        """The algorithm that gives steps of an optimizer, Dion or DeMo, if any spec has one."""
        return next((spec.algorithm for spec in self.specs if gives_steps(spec)), None)

    @property
    def own_momentum(self) -> Stage | None:
        """The stage that applies the optimizer's momentum, so that an optimizer must not."""
        return self.momentum_correction or self.step_algorithm

    def check_averages(self, problem: str) -> None:
        """Refuse algorithms that give steps of an optimizer.

        Args:
            problem: why the caller needs averages, and the remedy; it continues the algorithm's text.

        Raises:
            ConfigError: a spec has such an algorithm.
        """
        if self.step_algorithm is not None:
            raise ConfigError(f"'{self.step_algorithm.text}' {problem}")

    def check_dgc_sgd(self, settings: Mapping[str, Any], sgd: str) -> None:
        """Refuse an optimizer ``DGCSGD`` that does not fit.

        Args:
            settings: ``momentum`` and ``nesterov`` of the optimizer.
            sgd: name of the framework's optimizer with momentum, for the message.

        Raises:
            ConfigError: no spec applies the momentum, or another one.
        """
        memory = self.momentum_correction
        if memory is None:
            raise ConfigError(
                f"DGCSGD leaves the momentum to the compression, and '{self.compress.default}' "
                f"applies none: use {sgd}, or a spec such as dgc(ratio=0.001)"
            )
        for key in ("momentum", "nesterov"):
            if settings[key] != memory.params[key]:
                raise ConfigError(
                    f"DGCSGD has {key} {settings[key]} and '{memory.text}' {memory.params[key]}: "
                    "they must be the same"
                )

    @property
    def scales_lr(self) -> bool:
        """Whether any residual here is scaled by the learning rate."""
        return any(spec.scales_lr for spec in self.specs)

    @property
    def stateful(self) -> bool:
        """Whether any spec here keeps state between steps, which checkpoints must then hold."""
        return any(spec.stateful for spec in self.specs)

    @property
    def switches(self) -> bool:
        """Whether any tensor's spec is followed by another one."""
        return any(schedule.switches for _, schedule, *_ in self.compress.resolutions)

    def digest_text(self) -> str:
        """Canonical one-line JSON of everything that decides the bytes sent.

        Equal on two ranks exactly when they compress alike; specs are in canonical form.
        """
        rules = [
            {
                "match": rule.match.model_dump(exclude_none=True),
                "use": _digest(rule.use),
                "exchange": exchange,
                **averaging.changes,
            }
            for rule, (_, _, exchange, averaging) in zip(
                self.compress.rules, self.compress.resolutions[1:], strict=True
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
                **Averaging(self.compress.average, self.compress.clip).changes,
                **({} if nodes is None else {"ranks_per_node": nodes}),
            },
            "seed": self.seed,
            "version": self.version,
            **({"plugins": plugins} if plugins else {}),
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _digest(schedule: SpecSchedule) -> str | list[dict[str, object]]:
    if not schedule.switches:
        return schedule.canonical
    return [
        {**phase.model_dump(exclude_none=True), "use": phase.use.canonical}
        for phase in schedule.phases
    ]


def load_mapping(paths: Sequence[str | Path] = (), overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The merged mapping of ``paths`` and ``overrides``, reserved sections included.

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
    settings = {key: value for key, value in mapping.items() if key not in RESERVED_SECTIONS}
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        failure = config_error(
            error,
            origin=origin,
            model_at=_model_at,
            form="a mapping such as {version: 1, compress: {default: fp16}}",
            reserved=RESERVED_SECTIONS,
        )
    raise failure


def _model_at(path: Sequence[str]) -> type[BaseModel]:
    """The model of the mapping at ``path``."""
    models: dict[str, type[BaseModel]] = {
        "compress": Compress,
        "stats": StatsSection,
        "default": SpecPhase,
        "rules": Rule,
        "match": Match,
        "use": SpecPhase,
        "prior": Prior,
        "groups": Prediction,
    }
    return models[path[-1]] if path else Config
