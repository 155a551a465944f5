"""Launches that are the same in every step, in a CUDA graph: the host replays all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock

import torch

from gradcomp_torch.staging import on_stream, recording_stream

__all__ = ["Replayed"]

_recording = Lock()
"""Recordings on one stream come one after the other."""


class Replayed:
    """Launches on one device that come again and again.

    The first time they are made one by one, which compiles kernels; then they are recorded. On the CPU
    nothing is recorded. Products of matrices are not for graphs: cuBLAS has one workspace for a stream, which
    graphs that are replayed at the same time would share.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._key: Hashable = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, key: Hashable, launch: Callable[[], None]) -> None:
        """Make launches on the current stream.

        Args:
            key: equal if kernels, constants and memory are those of the last call; not None.
            launch: makes them; it waits for nothing and, after its first call, allocates nothing.
        """
        if self._device.type == "cpu":
            launch()
            return
        if key != self._key:
            self._key, self._graph = None, None
            launch()  # if it fails, the next call launches again: not all kernels are compiled
            self._key = key
            return
        if self._graph is None:
            self._graph = self._record(launch)
        self._graph.replay()

    def _record(self, launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # The default stream cannot be recorded. Other threads may allocate and wait meanwhile.
        with _recording, on_stream(recording_stream(self._device)):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                launch()
            finally:
                graph.capture_end()
        return graph
