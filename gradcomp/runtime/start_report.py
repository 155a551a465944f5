"""Messages of a job: how much is compressed, and the bytes that pass a rank's link."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcomp.config.idle_rules import idle_rules
from gradcomp.config.schema import Config
from gradcomp.exchange.link import costs_more
from gradcomp.exchange.patterns.dense import Dense
from gradcomp.exchange.patterns.dense_momentum import DenseMomentum
from gradcomp.exchange.patterns.single_rank import Alone
from gradcomp.exchange.select import link_remedy
from gradcomp.messages import show_messages
from gradcomp.runtime.resolve import Resolved

if TYPE_CHECKING:
    from gradcomp.runtime.pipeline import Pipeline

__all__ = ["Coverage", "StartReport"]

_log = logging.getLogger(__name__)

_SURPRISING = 0.5
"""Share of the elements from which tensors that are left uncompressed are worth a warning."""

_SMALL = 2**16
"""Bytes of a step that are worth no warning, such as headers and checks of a tiny model."""

_said: set[tuple[str, str]] = set()
"""Configurations and reasons of messages on single tensors in this process."""

_REMEDY = "a rule with `match: {}` and the spec comes before the default rules"


@dataclass
class Coverage:
    """How many of a model's tensors and elements are compressed.

    Attributes:
        tensors, elements: of the whole model.
        specs: for each spec, the number of tensors that it compresses.
        waits: for each spec that begins in a later step, that step.
        left: for each reason, the number of tensors that travel uncompressed, and their elements.
        unasked: elements that are uncompressed although no rule of the configuration says so.
    """

    tensors: int = 0
    elements: int = 0
    specs: Counter[str] = field(default_factory=Counter)
    waits: dict[str, int] = field(default_factory=dict)
    left: dict[str, tuple[int, int]] = field(default_factory=dict)
    unasked: int = 0

    @classmethod
    def of(cls, config: Config, resolved: Mapping[str, Resolved]) -> Coverage:
        """The coverage of tensors, by the decisions about their first step."""
        result = cls()
        for name, tensor in resolved.items():
            result.tensors += 1
            result.elements += tensor.key.numel
            if not isinstance(tensor.aggregator, Dense | DenseMomentum):
                spec = tensor.phase.use.short
                result.specs[spec] += 1
                if tensor.aggregator.start_step:
                    result.waits[spec] = tensor.aggregator.start_step
                continue
            reason = _reason(config, name, tensor)
            tensors, elements = result.left.get(reason, (0, 0))
            result.left[reason] = tensors + 1, elements + tensor.key.numel
            if not reason.startswith("compress."):
                result.unasked += tensor.key.numel
        return result

    @property
    def surprising(self) -> bool:
        """Whether so much is uncompressed that the user should know."""
        return self.unasked > _SURPRISING * self.elements

    def __str__(self) -> str:
        tensors = self.tensors - sum(tensors for tensors, _ in self.left.values())
        elements = self.elements - sum(elements for _, elements in self.left.values())
        text = (
            f"{tensors} of {self.tensors} tensors are compressed, {elements:,} of {self.elements:,} "
            "elements"
        )
        if self.specs:
            text += f": {', '.join(f'{few} by {spec!r}' for spec, few in self.specs.items())}"
        for spec, step in self.waits.items():
            text += f"; '{spec}' begins at step {step}, and its tensors are uncompressed until then"
        if self.left:
            reasons = (f"{few} by {reason}" for reason, (few, _) in self.left.items())
            text += f"; uncompressed: {', '.join(reasons)}"
        return f"{text}; {_REMEDY}" if self.surprising else text


def _reason(config: Config, name: str, resolved: Resolved) -> str:
    """Why a tensor is not compressed."""
    if resolved.phase.use.canonical != resolved.spec.canonical:
        return f"their shape, which '{resolved.phase.use.short}' does not take"
    return config.resolve(name, resolved.key.shape).rule


class StartReport:
    """Logs on rank 0 of a job: warnings where it is not as the user may think, else information.

    It reports on the link after the first step, and again whenever specs have changed: when an algorithm
    begins, a schedule goes on to another spec, or a policy has decided.

    Args:
        pipeline: of this rank.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        # Ranks that send rows of shards have another report, by their adapter.
        self._silent = pipeline.rank != 0 or pipeline.stats.scatters
        self._specs: frozenset[tuple[str, bool]] | None = None
        self._before: tuple[int, float, float] | None = None  # numbers before the step to report on
        self._may_change = True
        self._waits = 0  # the step before which nothing is compressed
        show_messages()
        if pipeline.rank == 0 and pipeline.world_size > 1:
            pipeline.stats.log_at_end(self)

    def begin(self, resolved: Mapping[str, Resolved]) -> None:
        """Report on the tensors of the model, before the first gradient; empty if unknown."""
        alone = [tensor for tensor in resolved.values() if isinstance(tensor.aggregator, Alone)]
        if alone:
            _log.info(
                "gradcomp: this rank is alone: it sends nothing, and does not compress %d of %d tensors, "
                "until other ranks come",
                len(alone),
                len(resolved),
            )
            return
        if self._silent or not resolved or self._pipeline.stats.dense_bytes:
            return
        if self._compresses:
            coverage = Coverage.of(self._pipeline.config, resolved)
            level = logging.WARNING if coverage.surprising else logging.INFO
            stats = self._pipeline.stats
            where = f"on {stats.engine} with {stats.ranks} ranks, " if stats.engine else ""
            _log.log(level, "gradcomp: %s%s", where, coverage)
            for name, tensor in resolved.items() if _log.isEnabledFor(logging.DEBUG) else ():
                shape, rule = (
                    tensor.key.shape,
                    self._pipeline.config.resolve(name, tensor.key.shape).rule,
                )
                _log.debug("gradcomp: %s %s: '%s' by %s", name, shape, tensor.phase.use.short, rule)
            shapes = {name: tensor.key.shape for name, tensor in resolved.items()}
            for text in idle_rules(self._pipeline.config, shapes):
                _log.warning("gradcomp: %s", text)
            for rule, choice in self._pipeline.resolver.automatic.items():
                _log.info("gradcomp: %s: exchange %s, as %s", rule, *choice)
        prior, ranks = self._pipeline.config.compress.prior, self._pipeline.world_size
        if prior is not None and prior.ranks != ranks:
            _log.warning(
                "gradcomp: compress.prior is of %d ranks and has no effect on %d: predict these with "
                "gradcomp advise --save",
                prior.ranks,
                ranks,
            )

    def unlisted(self, resolved: Resolved) -> None:
        """Report on a tensor that is not among the model's, if it is not compressed."""
        if self._silent or not resolved.dense or not self._compresses:
            return
        config, shape = self._pipeline.config, resolved.key.shape
        reason = _reason(config, resolved.key.name, resolved)
        # A script may make a compression for each average.
        case = (config.digest_text(), reason)
        if not reason.startswith("compress.") and case not in _said:
            _said.add(case)
            _log.warning(
                "gradcomp: a tensor of shape %s is averaged uncompressed, by %s; %s",
                shape,
                reason,
                _REMEDY,
            )

    def end_step(self) -> None:
        """Report on the link if the step that has ended was the first with its specs."""
        stats, before = self._pipeline.stats, self._before
        if before is None or stats.job_steps <= before[0]:
            return
        self._before = None
        steps = (stats.job_steps - before[0]) * stats.inner_steps
        passed = (stats.link_bytes - before[1]) / steps
        dense = (stats.dense_link_bytes - before[2]) / steps
        more = costs_more(passed, dense) and passed - dense > _SMALL
        text = (
            f"{passed:,.0f} bytes pass the link of a rank in a step, of {stats.ranks} ranks; a ring "
            f"all-reduce of the uncompressed gradients passes {dense:,.0f}"
        )
        if self._waits:
            text += f": nothing is compressed before step {self._waits}"
        elif more:
            choices = self._pipeline.config.compress.choices
            remedy = link_remedy(((spec, exchange) for _, spec, exchange in choices), stats.ranks)
            text += f", which is less: use {remedy}"
        warns = more and not self._waits
        _log.log(logging.WARNING if warns else logging.INFO, "gradcomp: %s", text)

    def begin_step(self, resolved: Mapping[str, Resolved]) -> None:
        """Look at the decisions of a step; see `end_step`."""
        pipeline, stats = self._pipeline, self._pipeline.stats
        if self._silent or stats.ranks == 1 or not self._compresses or not pipeline.policy.idle:
            return
        if self._specs is not None and not self._may_change:
            return
        step = pipeline.comparison.next_step
        waiting = {
            tensor.aggregator.start_step
            for tensor in resolved.values()
            if step < tensor.aggregator.start_step
        }
        specs = frozenset(
            (tensor.spec.canonical, step < tensor.aggregator.start_step)
            for tensor in resolved.values()
        )
        if specs == self._specs:
            return
        compressed = any(spec != "identity" and not waits for spec, waits in specs)
        self._waits = 0 if compressed else min(waiting, default=0)
        self._may_change = bool(waiting) or self._varies
        self._specs = specs
        self._before = stats.job_steps, stats.link_bytes, stats.dense_link_bytes

    @property
    def _varies(self) -> bool:
        """Whether the configuration gives tensors several specs in turn."""
        config = self._pipeline.config
        return config.switches or config.compress.policy == "auto"

    @property
    def _compresses(self) -> bool:
        """Whether the configuration compresses anything."""
        return any(spec.canonical != "identity" for spec in self._pipeline.config.specs)
