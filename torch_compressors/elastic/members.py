"""Exchanges of processes that come and go: their limits, and their connections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ProcessGroupGloo,
)

from gradcomp import Config
from gradcomp.adapter_api import (
    Driver,
    Pipeline,
    moved,
    placed,
    state_of,
)
from gradcomp.errors import ConfigError
from torch_compressors.gloo.engine import GlooEngine, message_limit
from torch_compressors.gloo.liveness import Liveness

__all__ = ["check_only_residuals", "join_members"]


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


def join_members(
    pipeline: Pipeline,
    shapes: Mapping[str, tuple[int, ...]],
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    where: str,
) -> tuple[Pipeline, Driver]:
    """Move a process's compression to its rank among new members, all of which call this.

    Args:
        pipeline: its compression so far.
        shapes: of all parameters, by name.
        store: of torch.distributed, new and shared by the members.
        rank, size: of this process, and number of members.
        timeout: longest wait for another member in an exchange.
        where: the caller's function that has this timeout, for messages.
    """
    group: Any = ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
    pipeline = moved(pipeline, placed(pipeline.state_dict(), rank, size))
    numels = [math.prod(shape) for shape in shapes.values()]
    limit = message_limit(numels, 4 * sum(numels))
    engine = GlooEngine({"all": group}, limit, where, Liveness(store, "fault", rank, range(size)))
    return pipeline, Driver(pipeline.profiled(engine, "torch.distributed"))
