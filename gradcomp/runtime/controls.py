"""Controls of a rank's compression that all adapters offer to users."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gradcomp.runtime.policy import Decision
from gradcomp.runtime.stats import Stats

if TYPE_CHECKING:
    from gradcomp.runtime.pipeline import Pipeline

__all__ = ["Controls"]


class Controls:
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

    @property
    def stats(self) -> Stats:
        """Statistics of this rank. Sent bytes include frame headers, indices and engines' tokens."""
        return self.pipeline.stats

    def decide_again(self) -> None:
        """Forget the decisions of the policy ``auto``, and measure anew; on all ranks at once."""
        self.pipeline.decide_again()

    def _report(self, decisions: Sequence[Decision]) -> None:
        if self.pipeline.rank == 0:
            for one in decisions:
                print(f"gradcomp: policy auto: {one}", file=sys.stderr, flush=True)
