"""One rank's run of the policy ``auto``; without a policy, everything is compressed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from typing import Any

from gradcomp.exchange.rounds import Request
from gradcomp.runtime.policy.auto import Policy
from gradcomp.runtime.policy.decision import Decision, PolicyGroup

__all__ = ["PolicyRun"]

_log = logging.getLogger(__name__)


class PolicyRun:
    """Runs a policy step by step.

    Args:
        policy: decides whether groups of tensors are compressed; None to compress all.
        forget: called when decisions have changed, so that tensors are resolved again.
        logs: whether this rank logs that the policy measures again.
    """

    def __init__(self, policy: Policy | None, forget: Callable[[], None], logs: bool) -> None:
        self._policy = policy
        self._forget = forget
        self._logs = logs

    @property
    def measures(self) -> bool:
        """Whether a policy measures exchanges in some steps; see `begin_step`."""
        return self._policy is not None

    @property
    def measured(self) -> tuple[PolicyGroup, ...]:
        """The groups with exchanges to be timed in this step; see `record`.

        Their tensors must be averaged group by group, with nothing else under way.
        """
        return () if self._policy is None else self._policy.measured

    @property
    def idle(self) -> bool:
        """Whether no exchange and no step is being measured."""
        return self._policy is None or self._policy.idle

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The present decisions, one for each group."""
        return () if self._policy is None else tuple(self._policy.decisions.values())

    def begin_step(
        self, groups: Iterable[PolicyGroup], ended: float, now: float
    ) -> Generator[Request, Any, tuple[Decision, ...]]:
        """Begin a step, before any of its gradients is averaged.

        Only with a policy does the round make requests. Without the call, everything is compressed.
        Afterwards tensors must be resolved again.

        Args:
            groups: of all tensors of the step that have one.
            ended: time of the last average of the previous step, in seconds.
            now: the present time, by the same clock.

        Returns:
            A round that returns the new decisions.
        """
        if self._policy is None:
            return ()
        before = set(self._policy.decisions)
        idle = self._policy.idle
        yield from self._policy.begin_step(groups, ended, now)
        if before != self._policy.decisions.keys() or not (idle and self._policy.idle):
            self._forget()
        decisions = self.decisions
        if before and not decisions and self._logs:
            _log.info("gradcomp: policy auto: measuring again")
        return tuple(decision for decision in decisions if decision.group not in before)

    def record(self, group: PolicyGroup, seconds: float) -> None:
        """Record the time, in seconds, of averaging the tensors of a group in this step."""
        assert self._policy is not None  # ensured by `measured`
        self._policy.record(group, seconds)

    def restart(self, decisions: Iterable[Decision]) -> None:
        """Continue with the decisions of a checkpoint."""
        if self._policy is not None:
            self._policy.restart(decisions)
            self._forget()

    def measure_anew(self) -> None:
        """Forget all decisions, and measure again; on all ranks at once."""
        if self._policy is not None:
            self._policy.measure_anew()
            self._forget()
