"""Controls of a rank's compression that all adapters offer to users."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gradcomp.errors import StateError
from gradcomp.runtime.checkpoint import Checkpoints
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

    def set_step(self, step: int) -> None:
        """Tell the script's own step, counted from 0; before each step, on every rank.

        Optional: the ranks compare it, so a rank that has skipped a step ends the job at once.

        Raises:
            ValueError: ``step`` is negative.
        """
        self.pipeline.set_step(step)

    @property
    def stats(self) -> Stats:
        """Statistics of this rank. Sent bytes include frame headers, indices and engines' tokens."""
        return self.pipeline.stats

    def decide_again(self) -> None:
        """Forget the decisions of the policy ``auto``, and measure anew; on all ranks at once."""
        self.pipeline.decide_again()

    def save(self, directory: str | Path, step: int, keep: int = 3) -> Path:
        """Write the compression state of all ranks; every rank must call it, between two steps.

        Args:
            directory: one for each job, shared by all hosts or on each host; made if missing.
            step: names the checkpoint, in [0, 10**12). It must be above the steps in ``directory``,
                unless `load` has read one of them; later checkpoints are then removed.
            keep: number of checkpoints that stay, at least 1.

        Returns:
            The checkpoint's folder.

        Raises:
            StateError: on all ranks, if any could not write its file. Earlier checkpoints stay.
        """
        return self._checkpoints.save(directory, step, keep, self.pipeline.state_dict())

    def load(self, directory: str | Path, step: int | None = None) -> int:
        """Continue from a checkpoint of `save`, on the same or another number of ranks.

        Every rank must call it, between two steps. On the same number of ranks training continues
        bit for bit, see `Pipeline.load_state_dict`.

        Args:
            directory: as for `save`.
            step: by default that of the newest checkpoint that is complete for every rank; damaged
                ones are skipped with a warning.

        Returns:
            The step of the checkpoint.

        Raises:
            StateError: on all ranks, if there is none, or that of ``step`` is damaged.
        """
        checkpoints = self._checkpoints
        loaded = checkpoints.load(directory, step)
        checkpoints.together(lambda: self.pipeline.load_state_dict(loaded.states))
        return loaded.step

    @cached_property
    def _checkpoints(self) -> Checkpoints:
        one = self.pipeline
        text = one.config.digest_text()
        return Checkpoints(one.rank, one.world_size, one.ranks_per_node, text, self._gather_bytes)

    def _gather_bytes(self, data: bytes) -> Sequence[bytes]:
        """The bytes of all ranks, in rank order; adapters override it. ``data`` has no line break."""
        raise StateError(
            f"{type(self).__name__} has no save() and load(): save state_dict() on every rank"
        )

    def _report(self, decisions: Sequence[Decision]) -> None:
        if self.pipeline.rank == 0:
            for one in decisions:
                print(f"gradcomp: policy auto: {one}", file=sys.stderr, flush=True)
