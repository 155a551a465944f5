"""A pretended device for torch: its memory is the host's, its streams are late, as a GPU's may be.

What a stream is given is done when somebody waits for it, or when the current stream is given work other
than copies. So code that reads a copy too soon, or changes memory too soon, gets other elements. With
`pretended(late=True)`, changes in place wait on their stream as well, so that code that uses a tensor on
another stream too soon finds its earlier elements. A copy that the host would wait for is an error.

Importing this module makes ``pretend`` the accelerator of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest import mock

import torch
from torch import library
from torch.utils import backend_registration
from torch.utils._pytree import tree_map

from gradcomp_torch import staging

backend_registration._setup_privateuseone_for_python_backend("pretend")

DEVICE = torch.device("pretend:0")

POOL = 32
"""Number of streams that are given out in turn, as by PyTorch."""

_module = torch.get_device_module(DEVICE)
_module.device = nullcontext  # the only one is always the current one


_numbers = count()


class Stream:
    """Work in its order. A second thread cannot enter it, as in PyTorch 2.7 to 2.11."""

    def __init__(self, device: torch.device = DEVICE) -> None:
        self.device = device
        self.number = next(_numbers) % POOL
        self.work: list[Callable[[], object]] = []
        self.done = 0
        self._before: Stream | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.number == other.number

    def __hash__(self) -> int:
        return self.number

    def run(self, until: int | None = None) -> None:
        """Do the work that was given before the ``until``-th."""
        for one in self.work[self.done : until]:
            self.done += 1
            one()

    def wait_stream(self, other: Stream) -> None:
        given = len(other.work)
        self.work.append(lambda: other.run(given))

    def wait_event(self, event: Event) -> None:
        self.work.append(event.reach)

    def __enter__(self) -> Stream:
        if self._before is not None:
            raise RuntimeError("Stream's context should not be initialized.")
        self._before = _current_stream(self.device)
        _set_stream(self)
        return self

    def __exit__(self, *error: object) -> None:
        before, self._before = self._before, None
        assert before is not None
        _set_stream(before)


class Event:
    """A place in a stream."""

    def __init__(self, device: torch.device = DEVICE) -> None:
        self._place: tuple[Stream, int] | None = None

    def record(self, stream: Stream) -> None:
        self._place = stream, len(stream.work)

    def synchronize(self) -> None:
        _log.waits += 1
        self.reach()

    def reach(self) -> None:
        """Do the work before the event."""
        assert self._place is not None
        stream, given = self._place
        stream.run(given)


_default = Stream()
_default.number = -1
_of_thread = threading.local()


class Graph:
    """Work that is recorded on the current stream of a thread; that it is replayed is noted only."""

    def __init__(self) -> None:
        self.replays = 0

    def capture_begin(self, **options: str) -> None:
        assert _current_stream() is not _default, "the default stream cannot be recorded"
        _of_thread.recording = True

    def capture_end(self) -> None:
        _of_thread.recording = False

    def replay(self) -> None:
        self.replays += 1


_module.is_current_stream_capturing = lambda: getattr(_of_thread, "recording", False)


@dataclass
class Log:
    """Copies that were started, as numbers of bytes in their order, and how often the host has waited."""

    to_host: list[int] = field(default_factory=list)
    to_device: list[int] = field(default_factory=list)
    waits: int = 0


_log = Log()
_pinned: dict[int, torch.Tensor] = {}


class Tensor(torch.Tensor):
    """A tensor of the device, around one of the host."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Tensor:
        made: Tensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=DEVICE,
        )
        made.raw = raw
        return made

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def record_stream(self, stream: Any) -> None:
        _recorded.add((self.untyped_storage().data_ptr(), id(stream)))

    @classmethod
    def __torch_dispatch__(
        cls, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if op is torch.ops.aten.copy_.default and _is_transfer(*args[:2]):
            _transfer(*args, **options)
            return args[0]
        _refuse_waits(op, options)
        if torch.device(options.pop("device", DEVICE)) != DEVICE:
            raise AssertionError(f"{op} waits for a copy to the host")
        if _late and args and op._schema.is_mutable and isinstance(args[0], Tensor | list):
            _current_stream().work.append(
                lambda: op(*tree_map(_raw, args), **tree_map(_raw, options))
            )
            return args[0] if isinstance(args[0], Tensor) else None
        if not op.is_view:
            _current_stream().run()
        result = op(*tree_map(_raw, args), **tree_map(_raw, options))
        if args and isinstance(args[0], Tensor) and result is args[0].raw:
            return args[0]  # changed in place
        return tree_map(lambda one: Tensor(one) if isinstance(one, torch.Tensor) else one, result)


_recorded: set[tuple[int, int]] = set()
_late = False


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, Tensor) else value


def _refuse_waits(op: Any, options: dict[str, Any]) -> None:
    if op is torch.ops.aten._local_scalar_dense.default:
        raise AssertionError(f"{op} waits for the device")


def _is_transfer(to: torch.Tensor, source: torch.Tensor) -> bool:
    return isinstance(to, Tensor) is not isinstance(source, Tensor) and source.dim() + to.dim() > 0


def _transfer(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
    """Start a copy from or to pinned memory."""
    stream = _current_stream()
    host, there = (source, to) if isinstance(to, Tensor) else (to, source)
    assert non_blocking, "a copy that the host waits for"
    assert host.untyped_storage().data_ptr() in _pinned, (
        "a copy from or to memory that is not pinned"
    )
    assert host.dtype == there.dtype, "a copy in the wider dtype"
    key = there.untyped_storage().data_ptr(), id(stream)
    assert stream is _default or key in _recorded, "memory may be given away before its copy"
    (_log.to_device if isinstance(to, Tensor) else _log.to_host).append(host.nbytes)
    stream.work.append(lambda: _raw(to).copy_(_raw(source)))


def _room(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    made = torch.full((numel,), torch.nan, dtype=dtype)
    _pinned[made.untyped_storage().data_ptr()] = made
    return made


def _current_stream(device: torch.device = DEVICE) -> Stream:
    stream: Stream = getattr(_of_thread, "stream", _default)
    return stream


def _set_stream(stream: Stream) -> None:
    _of_thread.stream = stream


def _empty(size: Sequence[int], *, dtype: torch.dtype, **_: Any) -> Tensor:
    return Tensor(torch.empty(size, dtype=dtype))


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype, **_: Any
) -> Tensor:
    return Tensor(torch.empty_strided(size, stride, dtype=dtype))


_operators = library.Library("aten", "IMPL")
_operators.impl("empty.memory_format", _empty, "PrivateUse1")
_operators.impl("empty_strided", _empty_strided, "PrivateUse1")


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor of the host."""
    return Tensor(tensor.detach().clone())


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The elements after all that the current stream was given."""
    _default.run()
    raw: torch.Tensor = _raw(tensor.detach())
    return raw.clone()


@contextmanager
def pretended(*, late: bool = False) -> Iterator[Log]:
    """Let tensors of the device be copied; returns the log of copies. ``late``: see above."""
    global _log, _late
    _log = log = Log()
    _late = late
    staging.copies_of.cache_clear()
    staging.recording_stream.cache_clear()
    with (
        mock.patch.object(torch, "Stream", Stream),
        mock.patch.object(torch, "Event", Event),
        mock.patch.object(torch.cuda, "CUDAGraph", Graph),
        mock.patch.object(torch.accelerator, "current_stream", _current_stream),
        mock.patch.object(torch.accelerator, "set_stream", _set_stream),
        mock.patch.object(staging, "room", _room),
    ):
        yield log
