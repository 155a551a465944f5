"""Limits of elastic jobs: processes may join and leave."""

from __future__ import annotations

from gradcomp import Config
from gradcomp.adapter_api import state_of
from gradcomp.errors import ConfigError

__all__ = ["check_only_residuals"]


def check_only_residuals(config: Config) -> None:
    """Refuse specs with state that a newcomer does not have.

    Raises:
        ConfigError: a spec keeps more than a residual between exchanges.
    """
    if config.compress.two_level:
        raise ConfigError("compress.exchange: two_level needs fixed nodes; remove it")
    for spec in config.specs:
        kinds = set(state_of(spec)) - {"residual"}
        if kinds:
            raise ConfigError(
                f"'{spec}' keeps {', '.join(sorted(kinds))} between exchanges, which must be equal "
                "on all processes: choose a codec with or without residual, such as residual|int4"
            )
