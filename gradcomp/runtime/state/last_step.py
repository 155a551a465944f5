"""Takes back what the last step has changed in a rank's state."""

from __future__ import annotations

from collections.abc import Iterable

from gradcomp.errors import discards_not_allowed, nothing_to_discard
from gradcomp.runtime.resolve import Resolved
from gradcomp.runtime.state.rank_state import RankState

__all__ = ["LastStep"]


class LastStep:
    """The last step of a rank.

    Args:
        state: of the rank.
    """

    def __init__(self, state: RankState) -> None:
        self._state = state

    @property
    def changes(self) -> int:
        """A number that grows when a tensor gets another spec, or arrays of an earlier step."""
        return self._state.changes

    def begins_all(self, tensors: Iterable[Resolved]) -> bool:
        """Whether the algorithms of all tensors have begun, so that none travels dense for that reason."""
        return all(
            self._state.step(tensor.key.name) >= tensor.aggregator.start_step for tensor in tensors
        )

    def begin(self) -> None:
        """Begin a step: the one before it can no longer be taken back."""
        self._state.copies.begin()

    def keep(self, names: Iterable[str]) -> None:
        """Copy the state of tensors before their rounds, for `put_back` in the same step."""
        self._state.keep(names)

    def put_back(self, names: Iterable[str]) -> None:
        """Give tensors their state from before this step, because their averages are not applied."""
        self._state.put_back(names)

    @property
    def can_discard(self) -> bool:
        """Whether `allow_discard` was called."""
        return self._state.discards

    def allow_discard(self) -> None:
        """Copy what each step changes, so that `discard` can take it back.

        Every rank must call it between the same steps. Each step then copies the memories of its
        tensors, on their devices.
        """
        self._state.discards = True

    def discard(self) -> None:
        """Take back the last step, as the script does not apply its averages.

        Memories, counters and other state return to their values before it; statistics go on. Every
        rank must call it, when all averages of the step are there and before the next step begins.

        Raises:
            ConfigError: `allow_discard` was not called.
            StateError: there is no step to discard: none was made since, or it was discarded already.
        """
        if not self.can_discard:
            raise discards_not_allowed()
        if not self._state.copies.kept:
            raise nothing_to_discard()
        self._state.put_back()
