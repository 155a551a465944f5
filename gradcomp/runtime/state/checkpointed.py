"""One call to save, and one to load, the states of all ranks: the part that all engines share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from gradcomp.runtime.state.attendance import attended
from gradcomp.runtime.state.checkpoint import Checkpoints

__all__ = ["Checkpointed"]


class Checkpointed:
    """Base class of objects that hold one rank's state; see `gradcomp.runtime.state.checkpoint`."""

    def save(self, directory: str | Path, step: int, keep: int = 3) -> Path:
        """Write the compression state of all ranks; every rank must call it, between two steps.

        Args:
            directory: one for each job, shared by all hosts or on each host; made if missing.
            step: names the checkpoint, in [0, 10**12). It must be above the steps in ``directory``,
                unless `load` has read one of them; checkpoints after that one are then removed.
            keep: number of checkpoints that stay, at least 1. Of an older one that is a symbolic link,
                only the link is removed.

        Returns:
            The checkpoint's folder.

        Raises:
            StateError: on all ranks, if any could not write its file. Earlier checkpoints stay.
            ProtocolError: a rank begins a step instead, which raises it there, too. Ranks that only do
                not come are named in a warning after 5 seconds.
        """
        self._assemble("save()")
        checkpoints = self._checkpoints
        state: dict[str, Any] = {}
        checkpoints.together(lambda: state.update(self._state_to_save()))
        return checkpoints.save(directory, step, keep, state)

    def load(
        self, directory: str | Path, step: int | None = None, *, missing_ok: bool = False
    ) -> int:
        """Continue from a checkpoint of `save`, on the same or another number of ranks.

        Every rank must call it, between two steps. On the same number of ranks training continues
        bit for bit, see `Pipeline.load_state_dict`.

        Args:
            directory: as for `save`.
            step: by default that of the newest checkpoint that is complete for every rank; damaged
                ones are skipped with a warning.
            missing_ok: begin without a checkpoint where no rank finds one, complete or damaged: for
                jobs that a launcher starts again.

        Returns:
            The step of the checkpoint; 0 without one.

        Raises:
            StateError: on all ranks, if there is none, or that of ``step`` is damaged.
            ProtocolError: see `save`.
        """
        self._assemble("load()")
        checkpoints = self._checkpoints
        if missing_ok and not checkpoints.exist(directory):
            return 0
        loaded = checkpoints.load(directory, step)
        checkpoints.together(lambda: self._take_saved(loaded.states))
        return loaded.step

    def _assemble(self, call: str) -> None:
        """Wait until all ranks are in a call; what each one does next has the ranks in the same order."""
        with self._attended(call):
            self._meet(call)

    def _attended(self, call: str) -> AbstractContextManager[None]:
        """A context that names the ranks that do not come; adapters with a store know their numbers."""
        return attended(call, lambda: "another rank does")

    def _meet(self, call: str) -> None:
        """Return when all ranks have called this."""
        self._checkpoints.together(lambda: None)

    @property
    @abstractmethod
    def _checkpoints(self) -> Checkpoints:
        """The files of this job, always the same object."""

    @abstractmethod
    def _state_to_save(self) -> Mapping[str, Any]:
        """This rank's state, for `gradcomp.runtime.state.state_file.pack_state`."""

    @abstractmethod
    def _take_saved(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Restore this rank's own state, or its part of the states of all ranks.

        Raises:
            StateError: they do not fit; nothing has changed.
        """
