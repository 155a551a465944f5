"""Predictions for the policy ``auto``: candidates that are too slow to need a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradcomp.config.predictions import Prior
from gradcomp.errors import ConfigError
from gradcomp.runtime.policy.decision import COMPRESSED, DENSE, HALF, PolicyGroup

__all__ = ["Predictions", "predictions", "worth_a_trial"]

Predictions = Mapping[PolicyGroup, Mapping[str, float]]
"""Seconds by group and candidate."""

_HOPELESS = 3.0
"""Times the least prediction above which a candidate is left out; predictions may be off by as much."""


def predictions(prior: Prior | None, ranks: int) -> Predictions:
    """The predictions of a configuration; none if they are of another number of ranks.

    Raises:
        ConfigError: two entries are of one group.
    """
    found: dict[PolicyGroup, dict[str, float]] = {}
    for entry in prior.groups if prior is not None and prior.ranks == ranks else ():
        group = PolicyGroup.of(entry.use, entry.exchange, entry.numel)
        if group in found:
            raise ConfigError(
                f"compress.prior.groups has two entries of {group} with exchange {entry.exchange}: "
                "leave one of them out"
            )
        seconds = {DENSE: entry.dense, HALF: entry.fp16, COMPRESSED: entry.compressed}
        found[group] = {name: value for name in group.ways if (value := seconds[name]) is not None}
    return found


def worth_a_trial(ways: Sequence[str], predicted: Mapping[str, float]) -> list[str]:
    """The candidates that may be fastest: at least one; those without a prediction are among them."""
    most = _HOPELESS * min(predicted.values(), default=0.0)
    return [name for name in ways if predicted.get(name, 0.0) <= most]
