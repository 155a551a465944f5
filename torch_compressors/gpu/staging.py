"""Copies between a device and the host that nobody waits for: pinned memory, a side stream, events.

On CPU tensors everything is done at once. Not run on any GPU so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

__all__ = ["Staged", "Staging"]


class Staging:
    """The side stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self._stream = None if device.type == "cpu" else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self, tensors: Sequence[torch.Tensor]) -> Iterator[Staged]:
        """Work on the side stream, after all that the current one was given so far.

        Args:
            tensors: which the work reads or changes; their memory is kept until it is done.
        """
        staged = Staged()
        if self._stream is None:
            yield staged
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        for tensor in tensors:
            tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            yield staged
            staged.end(self._stream)

    def join(self) -> None:
        """Let the current stream wait for the side stream."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class Staged:
    """Work on a side stream, and copies of its results to the host."""

    def __init__(self) -> None:
        self._done: torch.cuda.Event | None = None

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start a copy to the host, whose elements are there after `wait`.

        PyTorch keeps pinned memory for the next copy of its size, so that little of it is allocated.
        """
        if tensor.device.type == "cpu":
            return tensor.clone()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def end(self, stream: torch.cuda.Stream) -> None:
        """Mark the end of the work."""
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record(stream)

    def wait(self) -> None:
        """Wait for the work and its copies, and for nothing that was launched later."""
        if self._done is not None:
            self._done.synchronize()
