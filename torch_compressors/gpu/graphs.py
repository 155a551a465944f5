"""Launches that are the same in every step, in CUDA graphs: the host replays all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

__all__ = ["Replayed"]


class Replayed:
    """Launches on one device, by a key that tells different ones apart.

    Launches of a key have the same kernels, constants and memory each time. The first time they are made
    one by one, which compiles kernels; then they are recorded. On the CPU nothing is recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}

    def run(self, key: Hashable, launch: Callable[[], None]) -> None:
        """Make launches on the current stream; ``launch`` allocates nothing and waits for nothing."""
        if self._device.type == "cpu" or torch.cuda.is_current_stream_capturing():
            launch()
            return
        if key not in self._graphs:
            self._graphs[key] = None
            launch()
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = self._record(launch)
        graph.replay()

    def _record(self, launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # The default stream cannot be recorded. Other threads may allocate and wait meanwhile.
        with torch.Stream(self._device):
            graph.capture_begin(capture_error_mode="thread_local")
            launch()
            graph.capture_end()
        return graph
