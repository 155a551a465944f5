"""Encoding on a background thread, during the backward pass."""

from __future__ import annotations

from collections.abc import Callable

from gradcomp import Config
from gradcomp_torch.compat import at_end_of_backward, current_backward
from gradcomp_torch.encoder_thread import encodes_beside

__all__ = ["EncoderThread"]


class EncoderThread:
    """Whether gradients are encoded on a thread, and the wait at the end of the backward pass.

    Until then the pass goes on. Afterwards nothing is left to the thread: Horovod names collectives
    without a name by the number of handles so far, which the script's next ones find equal on all ranks.

    Args:
        config, on_device: see `encodes_beside`.
        settle: waits until the thread has begun all rounds.

    Attributes:
        used: the thread takes the gradients of backward passes.
    """

    def __init__(self, config: Config, on_device: bool, settle: Callable[[], None]) -> None:
        self.used = encodes_beside(config, on_device)
        self._settle = settle
        self._pass = -1

    def takes(self) -> bool:
        """Whether the thread takes a gradient that comes now: only within a backward pass."""
        if not self.used:
            return False
        current = current_backward()
        if current == -1:
            return False
        if current != self._pass:
            self._pass = current
            at_end_of_backward(self._settle)
        return True
