"""Controls of a rank's compression that all adapters offer to users."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradcomp.runtime.policy import Decision
from gradcomp.runtime.stats import Stats

if TYPE_CHECKING:
    from gradcomp.runtime.pipeline import Pipeline

__all__ = ["Controls"]


class Controls:
    """A base of classes that have a ``pipeline``, one rank's compression state."""

    if TYPE_CHECKING:

        @property
        def pipeline(self) -> Pipeline:
            """This rank's compression state."""

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins, counted from 0; every rank must, before its first step.

        Only schedules that count epochs need it, such as the warm-up of ``dgc``.
        """
        self.pipeline.set_epoch(epoch)

    @property
    def stats(self) -> Stats:
        """Bytes that this rank handed to collectives: frame headers and indices included, and
        tokens where the engine needs them."""
        return self.pipeline.stats

    def decide_again(self) -> None:
        """Forget what the policy ``auto`` has decided, and measure anew; on all ranks at once."""
        self.pipeline.decide_again()

    def _report(self, decisions: Sequence[Decision]) -> None:
        if self.pipeline.rank == 0:
            for one in decisions:
                print(f"gradcomp: policy auto: {one}", file=sys.stderr, flush=True)
