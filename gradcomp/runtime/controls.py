"""Controls of a rank's compression that all adapters offer to users."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gradcomp.errors import StateError
from gradcomp.runtime.measure.stats import Stats
from gradcomp.runtime.policy.decision import Decision
from gradcomp.runtime.state.checkpoint import Checkpoints
from gradcomp.runtime.state.checkpointed import Checkpointed

if TYPE_CHECKING:
    from gradcomp.runtime.pipeline import Pipeline

__all__ = ["Controls"]

_log = logging.getLogger(__name__)


class Controls(Checkpointed):
    """Base class of compressions; a subclass has a ``pipeline``, one rank's compression state."""

    if TYPE_CHECKING:

        @property
        def pipeline(self) -> Pipeline:
            """This rank's compression state."""

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0; every rank must call it before the epoch's first step.

        Only schedules that count epochs need it, such as the warm-up of ``dgc``.

        Raises:
            ValueError: ``epoch`` is negative.
        """
        self.pipeline.set_epoch(epoch)

    def set_lr(self, lr: float | Mapping[str, float]) -> None:
        """Set the learning rate of the coming step; see `Pipeline.set_lr`."""
        self.pipeline.set_lr(lr)

    def set_loss_scale(self, scale: float) -> None:
        """Begin a step of mixed precision; see `Pipeline.set_loss_scale`."""
        self.pipeline.set_loss_scale(scale)

    def allow_discard(self) -> None:
        """Copy what each step changes, for `discard_step`; see `LastStep.allow_discard`."""
        self.pipeline.last_step.allow_discard()

    def discard_step(self) -> None:
        """Take back the last step, as its averages are not applied; see `LastStep.discard`.

        Raises:
            ConfigError: `allow_discard` was not called.
            StateError: there is no step to discard.
            ProtocolError: averages of the step are missing.
        """
        self._check_complete()
        self.pipeline.last_step.discard()

    def _check_complete(self) -> None:
        """Raise ProtocolError if a step has begun and not all of its averages are there."""

    def set_step(self, step: int) -> None:
        """Tell the script's own step, counted from 0; before each step, on every rank.

        Optional: the ranks compare it, so a rank that has skipped a step ends the job at once.

        Raises:
            ValueError: ``step`` is negative.
        """
        self.pipeline.comparison.set_step(step)

    @property
    def stats(self) -> Stats:
        """Statistics of this rank. Sent bytes include frame headers, indices and engines' tokens."""
        return self.pipeline.stats

    def decide_again(self) -> None:
        """Forget the decisions of the policy ``auto``, and measure again; on all ranks at once."""
        pipeline = self.pipeline
        if pipeline.policy.measures:
            pipeline.policy.measure_anew()
            pipeline.stats.decisions = ()
            pipeline.comparison.fresh = True

    @cached_property
    def _checkpoints(self) -> Checkpoints:
        pipeline = self.pipeline
        text = pipeline.config.digest_text()
        return Checkpoints(
            pipeline.rank, pipeline.world_size, pipeline.ranks_per_node, text, self._gather_bytes
        )

    def _meet(self, call: str) -> None:
        # Adapters make their collector with the first gradients, on all ranks.
        collector = vars(self).get("_collector")
        if collector is None:
            super()._meet(call)
        else:
            collector.meet(call)

    def _state_to_save(self) -> Mapping[str, Any]:
        return self.pipeline.state_dict()

    def _take_saved(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        self.pipeline.load_state_dict(states)

    def _gather_bytes(self, data: bytes) -> Sequence[bytes]:
        """The bytes of all ranks, in rank order; adapters override it. ``data`` has no line break."""
        raise StateError(
            f"{type(self).__name__} has no save() and load(): save state_dict() on every rank"
        )

    def _report(self, decisions: Sequence[Decision]) -> None:
        if self.pipeline.rank == 0:
            for decision in decisions:
                _log.info("gradcomp: policy auto: %s", decision)
