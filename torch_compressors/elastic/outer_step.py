"""Outer steps of processes that come, go and lag.

::

    store = TCPStore("head", 29400, is_master=False)  # held by a process that does not train
    outer = ElasticOuterStep("int4", model, store=store, name=socket.gethostname(), quorum=2)
    while outer.rounds < 1000:
        loss(model, next(batches)).backward()
        optimizer.step()
        outer.step()
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from gradcomp import Config
from gradcomp.adapter_api import (
    Broadcast,
    Collector,
    FloatArray,
    OuterOptions,
    Pipeline,
    agreement_line,
    check_agreement,
    common_state,
    pack_state,
    placed,
    take_common_state,
    unpack_state,
)
from gradcomp.errors import ConfigError, GradcompError, PeerError, StateError
from gradcomp_torch.outer import ParameterValues, TensorOuterSteps
from gradcomp_torch.parameters import check_unsharded
from torch_compressors.elastic.members import check_only_residuals, join_members
from torch_compressors.elastic.rendezvous import FRESH, Members, Rendezvous

__all__ = ["ElasticOuterStep"]

_TRIES = 10
"""Failed exchanges in a row after which a process gives up."""


class ElasticOuterStep(TensorOuterSteps):
    """Outer steps of members that may change at each outer step; see `OuterSteps`.

    Every ``every`` steps the processes that are there exchange their changes, weighted by samples.
    Who is not there within ``grace`` seconds joins at the next exchange, with its change since its
    own last one. A process that starts takes parameters and outer momentum from the others, and
    has no change and no residual yet. If a process ends in the middle of an exchange, the exchange
    does not count: the others get their residuals back, and repeat it without that process.

    Parameters, outer momentum and results are equal on all members after each exchange. Lost with a
    process are its steps since its last exchange, and its residual.

    Args:
        config: a spec or a `gradcomp.Config`; of specs with state only those with ``residual``.
        model: as for `OuterStep`.
        store: of torch.distributed, shared by all processes; it must outlive them. No process group
            is needed.
        name: of this process: unique in the job, and the same after a restart.
        every, options: ``every``, ``lr``, ``momentum`` and ``nesterov`` of
            `gradcomp.runtime.outer.options.OuterOptions`.
        quorum: least number of processes in an exchange, at least 1.
        grace: wait in seconds for processes beyond the quorum.
        join_timeout: longest wait for a quorum, in seconds.
        timeout: longest wait for another process in an exchange, in seconds.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: an argument does not fit; see `OuterOptions.of`.
        PeerError: no quorum has come in time.
        ProtocolError: the processes have different arguments or models.
    """

    def __init__(
        self,
        config: str | Config,
        model: torch.nn.Module,
        *,
        store: Any,
        name: str,
        every: int = 30,
        quorum: int = 2,
        grace: float = 10.0,
        join_timeout: float = 1800.0,
        timeout: float = 60.0,
        **options: Any,
    ) -> None:
        self.config = Config.of(config, measures=False)
        chosen = OuterOptions.of(self.config, every, weighted=True, **options)
        times = {"join_timeout": join_timeout, "timeout": timeout}
        _check(self.config, chosen, {"quorum": quorum, **times}, grace)
        check_unsharded(model.named_parameters())
        values = ParameterValues(model.named_parameters())
        self._timeout = timedelta(seconds=timeout)
        self._agreement = json.dumps(
            [agreement_line(self.config, values.shapes, None, kinds=values.kinds), chosen.text()]
        )
        self._store = PrefixStore("gradcomp.outer", store)
        self._name = name
        self._rendezvous = Rendezvous(self._store, name, quorum, grace, **times)
        self._members: Members | None = None
        self._version = FRESH
        self._pipeline = Pipeline(self.config)  # until the first exchange
        super().__init__(chosen, values)
        nothing = {
            parameter: np.zeros_like(value) for parameter, value in self._outer.start.items()
        }
        for parameter, average in self._average(nothing, 0.0).items():
            self._outer.step(parameter, average)
        for parameter, start in self._outer.start.items():
            self._write(parameter, start)

    @property
    def rounds(self) -> int:
        """Number of outer steps of the job so far; equal on all members after each exchange."""
        return self._version

    @property
    def members(self) -> list[str]:
        """Names of the processes in the last exchange."""
        assert self._members is not None  # the constructor attends one
        return [arrival.name for arrival in self._members.arrivals]

    def save(self, directory: str | Path, step: int, keep: int = 3) -> Path:
        """Refused: the processes that would write one checkpoint together come and go.

        Raises:
            StateError: always.
        """
        raise StateError(
            "processes that come and go have no checkpoint together: each takes the parameters from "
            "the others when it starts; save the model of one of them"
        )

    def step(self, samples: float | None = None) -> bool:
        """See `OuterSteps.step`; ``samples`` is 1 by default."""
        return super().step(1.0 if samples is None else samples)

    def _average(self, changes: dict[str, FloatArray], samples: float) -> dict[str, FloatArray]:
        """The averages of the next exchange that counts; none if all members have just started."""
        problem: Exception | None = None
        for _ in range(_TRIES):
            members = self._rendezvous.meet(self._version, self._agreement)
            _check_same(members)
            kept = self._pipeline.state_dict()
            averages: dict[str, FloatArray] | None = None
            try:
                self._enter(members)
                kept = self._pipeline.state_dict()
                averages = {}
                if any(arrival.version != FRESH for arrival in members.arrivals):
                    mine = {name: change.copy() for name, change in changes.items()}
                    averages = super()._average(mine, samples)
            except (GradcompError, RuntimeError) as error:
                averages, problem = None, error
            if self._rendezvous.settle(members, averages is not None) and averages is not None:
                self._version = max(arrival.version for arrival in members.arrivals) + 1
                return averages
            self._leave(kept)
        raise PeerError(
            f"{_TRIES} exchanges in a row have failed, the last one with: {problem}"
        ) from problem

    def _enter(self, members: Members) -> None:
        """Make the exchange of a rendezvous possible: connections, rank, and the newest parameters."""
        names = [arrival.name for arrival in members.arrivals]
        rank, size = members.rank(self._name), len(names)
        if self._members is None or self.members != names:
            shapes, store = self._values.shapes, PrefixStore(f"{members.number}", self._store)
            self._pipeline, self._driver = join_members(
                self._pipeline, shapes, store, rank, size, self._timeout, "ElasticOuterStep"
            )
            self._collector = Collector(self._driver, self._pipeline, shapes, overwrite=True)
        self._members = members
        newest = members.arrivals[members.source]
        versions = [arrival.version for arrival in members.arrivals]
        if len(set(versions)) > 1 or FRESH in versions:
            self._catch_up(rank == members.source, newest.version)

    def _catch_up(self, gives: bool, version: int) -> None:
        """Take the job's parameters and outer momentum from the source; every member calls it."""
        data = np.zeros(0, np.uint8)
        if gives:
            state = {"outer": self._outer.state_dict(), **common_state(self._pipeline)}
            data = np.frombuffer(bytearray(pack_state(state)), np.uint8)
        taken = self._driver.reply(self._driver.post(Broadcast("outer.newest", data)))
        if gives or self._version == version != FRESH:
            return
        state = unpack_state(taken.tobytes())
        self._outer.load_state_dict(state["outer"])
        take_common_state(self._pipeline, state, self._values.shapes)
        self._version = version

    def _leave(self, kept: dict[str, Any]) -> None:
        """Close the connections of a failed exchange, and take back the state before it."""
        pipeline = self._pipeline
        pipeline.load_state_dict(placed(kept, pipeline.rank, pipeline.world_size))
        self._members = None


def _check(
    config: Config, options: OuterOptions, from_one: Mapping[str, float], grace: float
) -> None:
    for name, value in {**from_one, "grace": grace}.items():
        least = 1 if name in from_one else 0
        if not least <= value < math.inf:
            raise ConfigError(f"{name} is {value}; it must be at least {least}")
    if (options.fragments, options.overlap, options.mixing) != (1, 0, 0.0):
        raise ConfigError(
            "processes that come and go average all parameters together and wait for the result: "
            "leave out fragments, overlap and mixing"
        )
    check_only_residuals(config)


def _check_same(members: Members) -> None:
    texts = [json.loads(arrival.text) for arrival in members.arrivals]
    check_agreement([line for line, _ in texts])
    OuterOptions.check_same([line for _, line in texts])
