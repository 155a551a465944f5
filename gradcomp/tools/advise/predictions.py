"""Predictions for ``compress.prior``: each choice of ``policy: auto``, for each group of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from gradcomp.codec.spec import parse
from gradcomp.config.schema import Config
from gradcomp.exchange.select import EXCHANGES, exchange_pattern, pattern_between_nodes
from gradcomp.runtime.policy.decision import DENSE, HALF, PolicyGroup
from gradcomp.tools.advise.cache import SpeedCache
from gradcomp.tools.advise.predict import UNCOMPRESSED, Job, late_pipeline, predict
from gradcomp.tools.advise.rank import Candidate

__all__ = ["PriorMaker", "prior_text"]

_FP16 = "fp16"


@dataclass(frozen=True)
class PriorMaker:
    """The groups of a configuration in a job, before they are predicted.

    Attributes:
        groups: names of the tensors of each, in the order of the model.
    """

    config: Config
    job: Job
    groups: Mapping[PolicyGroup, list[str]]

    @classmethod
    def of(cls, config: Config, job: Job) -> PriorMaker:
        """Find the groups, as they are after all warm-ups.

        Those with two_level are left out where the job has no such nodes; they are measured then.

        Args:
            config: with the policy ``auto``, without which there are no groups.

        Raises:
            ConfigError: the configuration does not fit the ranks.
        """
        per_node = config.compress.ranks_per_node or job.ranks_per_node
        nodes = per_node == job.ranks_per_node and 1 < per_node < job.ranks
        groups: dict[PolicyGroup, list[str]] = {}
        for name, tensor in late_pipeline(config, job).resolve_all(job.shapes).items():
            group = tensor.group
            if group is not None and (nodes or pattern_between_nodes(group.exchange) is None):
                groups.setdefault(group, []).append(name)
        return cls(config, job, groups)

    @property
    def candidates(self) -> list[Candidate]:
        """Candidates that must be calibrated before `predictions`."""
        found = [self._compressed(group) for group in self.groups]
        if any(HALF in group.ways for group in self.groups):
            found.append(Candidate(_FP16, "reduce", "reduce"))
        return list(dict.fromkeys(found))

    def predictions(self, cache: SpeedCache) -> dict[str, Any]:
        """The value of ``compress.prior``, by speeds of the cache."""
        bucket_bytes = self.config.compress.bucket_bytes
        everywhere = [{"match": {}, "use": _FP16}]
        compress = {"default": _FP16, "rules": everywhere, "bucket_bytes": bucket_bytes}
        half = Config.from_mapping({"version": 1, "compress": compress})
        return {"ranks": self.job.ranks, "groups": [*self._entries(cache, half)]}

    def _entries(self, cache: SpeedCache, half: Config) -> Iterator[dict[str, Any]]:
        for group, names in sorted(self.groups.items()):
            shapes = {name: self.job.shapes[name] for name in names}
            # The comparison of steps and copies for DDP belong to the whole job, not to each group.
            costs = replace(self.job.costs, tokens=False, copies=0)
            job = replace(self.job, shapes=shapes, costs=costs)
            seconds = {}
            for way in group.ways:
                if way == DENSE:
                    step = predict(job, UNCOMPRESSED)
                elif way == HALF:
                    speeds = cache.speeds(_FP16, "reduce")
                    step = predict(job, _FP16, "reduce", speeds, half)
                else:
                    candidate = self._compressed(group)
                    speeds = cache.speeds(candidate.spec, candidate.exchange)
                    step = predict(job, candidate.spec, candidate.exchange, speeds, self.config)
                seconds[way] = float(f"{step.seconds:.4g}")
            yield {
                "use": group.spec,
                "exchange": group.exchange,
                "numel": group.numels[0],
                **seconds,
            }

    def _compressed(self, group: PolicyGroup) -> Candidate:
        """The group's spec under an exchange that names a pattern."""
        spec, exchange = parse(group.spec), group.exchange
        nodes = pattern_between_nodes(exchange) is not None
        ranks = self.job.ranks // self.job.ranks_per_node if nodes else self.job.ranks
        pattern = exchange_pattern(spec, exchange, ranks)
        return Candidate(group.spec, pattern if pattern in EXCHANGES else exchange, pattern)


def prior_text(prior: Mapping[str, Any]) -> str:
    """A configuration with this prior alone, in YAML."""
    return yaml.safe_dump(
        {"version": 1, "compress": {"prior": dict(prior)}},
        sort_keys=False,
        default_flow_style=None,
        width=1000,
    )
