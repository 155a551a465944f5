"""Encoding on a thread of its own, beside the backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gradcomp import Config
from gradcomp.adapter_api import processors

__all__ = ["EncoderThread"]


class EncoderThread:
    """Whether gradients are encoded on a thread, and the wait at the end of the backward pass.

    Until then the pass goes on. Afterwards nothing is left to the thread: Horovod names collectives
    without a name by the number of handles so far, which the script's next ones find equal on all ranks.

    Args:
        config: its ``compress.encoder_thread`` decides; ``auto`` is a processor to spare, or a device
            that computes.
        local_ranks: number of ranks on this host.
        on_device: gradients come on a device.
        settle: waits until the thread has begun all rounds.

    Attributes:
        used: the thread takes the gradients of backward passes.
    """

    def __init__(
        self, config: Config, local_ranks: int, on_device: bool, settle: Callable[[], None]
    ) -> None:
        setting = config.compress.encoder_thread
        spare = on_device or processors() >= 2 * local_ranks
        self.used = setting == "always" or (setting == "auto" and spare)
        self._settle = settle
        self._pass = -1

    def takes(self) -> bool:
        """Whether the thread takes a gradient that comes now: only within a backward pass."""
        if not self.used:
            return False
        current = torch._C._current_graph_task_id()
        if current == -1:
            return False
        if current != self._pass:
            self._pass = current
            torch.autograd.Variable._execution_engine.queue_callback(self._settle)
        return True
