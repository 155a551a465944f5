"""Copies between a device and the host that nobody waits for: pinned memory, a side stream, events.

On CPU tensors everything is done at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch

from gradcomp.errors import ConfigError

__all__ = [
    "Staged",
    "Staging",
    "computed_by_now",
    "copies_of",
    "on_stream",
    "recording_stream",
    "refuse_recording",
    "room",
]


class Staging:
    """A side stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = None if device.type == "cpu" else _side_stream(device)

    @contextmanager
    def beside(
        self, tensors: Sequence[torch.Tensor], after: Iterable[torch.Event] = ()
    ) -> Iterator[Staged]:
        """Work on the side stream, after all that the current one was given so far.

        Args:
            tensors: which the work reads or changes; their memory is kept until it is done.
            after: further events that the work waits for.
        """
        staged = Staged()
        if self._stream is None:
            yield staged
            return
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))
        for event in after:
            self._stream.wait_event(event)
        # Gradients of a bucket share their memory.
        for tensor in {view.untyped_storage().data_ptr(): view for view in tensors}.values():
            tensor.record_stream(self._stream)
        with on_stream(self._stream):
            yield staged
            staged.end(self._device, self._stream)

    def current(self) -> AbstractContextManager[object]:
        """Make the side stream the current one."""
        return nullcontext() if self._stream is None else on_stream(self._stream)

    def share(self, tensor: torch.Tensor) -> None:
        """Keep a tensor's memory, when it is freed, until the side stream has done its work by then."""
        if self._stream is not None:
            tensor.record_stream(self._stream)

    def join(self) -> None:
        """Let the current stream wait for the side stream."""
        if self._stream is not None:
            torch.accelerator.current_stream(self._device).wait_stream(self._stream)


class Staged:
    """Work on a side stream, and copies of its results to the host."""

    def __init__(self) -> None:
        self._done: torch.Event | None = None

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start a copy to the host; it is complete after `wait`."""
        host = room(tensor.numel(), tensor.dtype, tensor.device).view(tensor.shape)
        return host.copy_(tensor, non_blocking=True)

    def end(self, device: torch.device, stream: torch.Stream) -> None:
        """Mark the end of the work."""
        self._done = torch.Event(device)
        self._done.record(stream)

    def wait(self) -> None:
        """Wait for the work and its copies, and for nothing that was launched later."""
        if self._done is not None:
            self._done.synchronize()


@contextmanager
def on_stream(stream: torch.Stream) -> Iterator[None]:
    """Make a stream the current one of this thread.

    ``with stream:`` keeps the stream to return to in the object, and so fails where a second thread enters it.
    """
    # `set_stream` makes the device the current one, too. Its own context returns to a thread's first device
    # without a new CUDA context there.
    with torch.get_device_module(stream.device).device(stream.device):
        before = torch.accelerator.current_stream(stream.device)
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)


@cache
def recording_stream(device: torch.device) -> torch.Stream:
    """The one stream of a device on which launches are recorded.

    PyTorch gives out 32 streams in turn. A new one for each recording would soon be one of those that other
    threads wait for or copy on, which ends a recording or gets into it.
    """
    return torch.Stream(device)


def _side_stream(device: torch.device) -> torch.Stream:
    """A stream on which nothing is recorded."""
    recorded = recording_stream(device)
    stream = torch.Stream(device)
    return torch.Stream(device) if stream == recorded else stream


def refuse_recording(device: torch.device, call: str) -> None:
    """Refuse a call while its stream is recorded in a CUDA graph of the script.

    Raises:
        ConfigError: the host would exchange gradients now, and no replay would.
    """
    is_recorded = getattr(torch.get_device_module(device), "is_current_stream_capturing", None)
    if is_recorded is not None and is_recorded():
        raise ConfigError(
            f"{call} cannot be recorded in a CUDA graph: the host exchanges gradients, and a replay would leave "
            "that out. Run backward() outside of torch.cuda.graph(), or average the gradients after the replay "
            "by GradientAverager"
        )


def computed_by_now(device: torch.device) -> torch.Event | None:
    """An event after all that the current stream was given so far; None for the host."""
    if device.type == "cpu":
        return None
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event


def room(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Flat memory on the host for copies from or to a device.

    PyTorch keeps pinned memory for the next copy of its size, so that little of it is allocated, and not
    before copies from and to it have ended.
    """
    return torch.empty(numel, dtype=dtype, device="cpu", pin_memory=device.type != "cpu")


@cache
def copies_of(device: torch.device) -> Staging:
    """The side stream for copies of gradients, which do not wait for kernels that encode others."""
    return Staging(device)
