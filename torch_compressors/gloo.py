"""Rounds over process groups of Gloo, which matches collectives by the order of their launch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from gradcomp.adapter_api import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    ByteArray,
    RankGroup,
    Request,
)
from gradcomp.errors import ProtocolError

__all__ = ["GlooEngine"]

_FUSED_BYTES = 4 * 2**20
_KEPT_WORKS = 8
_FIRST_BUFFER = 2**16

# The size that precedes the data in each message between two ranks.
_SIZE = np.dtype("<u8")

# Tags of messages between two ranks. Messages of one tag arrive in the order of sending.
_BEGINNING, _REST = 0, 1


@dataclass
class _Fused:
    """Arrays of one dtype that are all-reduced together."""

    parts: list[torch.Tensor] = field(default_factory=list)
    first: str = ""
    numel: int = 0
    nbytes: int = 0
    ranks: int = 0
    together: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    work: dist.Work | None = None

    def add(self, request: AllReduce) -> _Member:
        part = torch.from_numpy(request.array).reshape(-1)
        member = _Member(self, self.numel, request)
        self.parts.append(part)
        self.first = self.first or request.name
        self.numel += part.numel()
        self.nbytes += request.nbytes
        return member

    def launch(self, group: dist.ProcessGroup) -> dist.Work:
        # Always a copy, because a round may still read the array.
        self.together = torch.cat(self.parts)
        self.ranks = group.size()
        self.parts.clear()
        with _answered(self.first):
            self.work = group.allreduce([self.together])
        return self.work

    def average(self, member: _Member) -> npt.NDArray[Any]:
        assert self.work is not None  # launched by the engine
        if self.ranks:
            _wait(self.work, self.first)
            # In the arrays' own dtype, as the loopback does.
            self.together *= torch.tensor(1.0 / self.ranks, dtype=self.together.dtype)
            self.ranks = 0
        shape = member.request.array.shape
        flat = self.together[member.begin : member.begin + member.request.array.size]
        average: npt.NDArray[Any] = flat.numpy().reshape(shape)
        return average


@dataclass(frozen=True)
class _Member:
    """An all-reduce request, and the position of its first element in the fused array."""

    fused: _Fused
    begin: int
    request: AllReduce


@dataclass(frozen=True)
class _Sent:
    """Messages of a request that are under way, by the rank at the other end."""

    request: AllGather | AllToAll | Broadcast
    group: dist.ProcessGroup
    own: ByteArray
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)
    receiving: dict[int, dist.Work] = field(default_factory=dict)
    sending: list[tuple[int, dist.Work, torch.Tensor]] = field(default_factory=list)
    rests: dict[int, torch.Tensor] = field(default_factory=dict)


_Handle: TypeAlias = _Member | _Sent


def _message(data: ByteArray) -> torch.Tensor:
    size = np.array([data.size], _SIZE).view(np.uint8)
    return torch.from_numpy(np.concatenate([size, data]))


@contextmanager
def _answered(name: str, peer: int | None = None) -> Iterator[None]:
    """A context that turns RuntimeError of Gloo into ProtocolError, with the lost rank's name."""
    try:
        yield
    except RuntimeError as error:
        lost = "another rank" if peer is None else f"rank {peer}"
        raise ProtocolError(
            f"{lost} does not answer in the exchange '{name}': see its output, and give ddp_hook a "
            f"longer timeout if the rank is only slow ({error})"
        ) from error


def _wait(work: dist.Work, name: str, peer: int | None = None) -> None:
    with _answered(name, peer):
        work.wait()


class GlooEngine:
    """Asynchronous collectives on CPU memory.

    All ranks must start and finish the same requests in the same order. Successive all-reduces are
    launched as one, at `flush`, when they reach 4 MiB, or when the first of them is finished.

    Frames travel as messages that begin with their size. A receiver's buffer has twice the size of
    the last message of the same name and sender, and at least 64 KiB. If this is too small, the
    rest is a second message; both ends know the buffer's size.

    Args:
        groups: the process group of each group that this rank is in.
    """

    def __init__(self, groups: Mapping[RankGroup, dist.ProcessGroup]) -> None:
        self._groups = groups
        self._fused: dict[tuple[RankGroup, np.dtype[Any]], _Fused] = {}
        self._buffer_sizes: dict[tuple[str, int, int], int] = {}
        # Keeps references to the last all-reduces. Otherwise a thread of PyTorch may release the
        # last reference after the interpreter has ended, which aborts the process.
        self._works: deque[dist.Work] = deque(maxlen=_KEPT_WORKS)

    def start(self, request: Request) -> _Handle | None:
        """Start a request without waiting, unless this rank is outside its group.

        Raises:
            ProtocolError: the connection to another rank is lost.
        """
        group = self._groups.get(request.group)
        if group is None:
            return None
        if isinstance(request, AllReduce):
            return self._add(request)
        return self._send(request, group)

    def finish(self, handle: _Handle | None) -> Any:
        """Wait for a started request.

        Raises:
            ProtocolError: another rank does not answer.
        """
        if handle is None:
            return None
        if isinstance(handle, _Member):
            if handle.fused.work is None:
                self.flush()
            return handle.fused.average(handle)
        return self._received(handle)

    def flush(self) -> None:
        """Launch all waiting all-reduces."""
        for (group, _), fused in self._fused.items():
            self._works.append(fused.launch(self._groups[group]))
        self._fused.clear()

    def _add(self, request: AllReduce) -> _Member:
        fused = self._fused.setdefault((request.group, request.array.dtype), _Fused())
        member = fused.add(request)
        if fused.nbytes >= _FUSED_BYTES:
            self.flush()
        return member

    def _send(self, request: AllGather | AllToAll | Broadcast, group: dist.ProcessGroup) -> _Sent:
        size, rank = group.size(), group.rank()
        if isinstance(request, AllToAll):
            parts = np.split(request.data, np.cumsum(request.splits)[:-1])
        else:
            parts = [request.frame if isinstance(request, AllGather) else request.data] * size
        sent = _Sent(request, group, parts[rank])
        message = None
        for peer in range(size):
            if peer == rank:
                continue
            if message is None or isinstance(request, AllToAll):
                message = _message(parts[peer])
            capacity = self._buffer_size(request.name, rank, peer)
            own_capacity = self._buffer_size(request.name, peer, rank)
            sent.buffers[peer] = torch.empty(own_capacity, dtype=torch.uint8)
            with _answered(request.name, peer):
                sent.receiving[peer] = group.recv([sent.buffers[peer]], peer, _BEGINNING)
                sent.sending.append(
                    (peer, group.send([message[:capacity]], peer, _BEGINNING), message)
                )
            sent.rests[peer] = message[capacity:]
            self._set_buffer_size(request.name, rank, peer, message.numel())
        return sent

    def _received(self, sent: _Sent) -> Any:
        request, group = sent.request, sent.group
        replies: list[ByteArray] = [sent.own] * group.size()
        for peer, rest in sent.rests.items():
            if rest.numel():
                with _answered(request.name, peer):
                    sent.sending.append((peer, group.send([rest], peer, _REST), rest))
        for peer, work in sent.receiving.items():
            _wait(work, request.name, peer)
            data = sent.buffers[peer].numpy()
            total = _SIZE.itemsize + int(data[: _SIZE.itemsize].view(_SIZE)[0])
            if total > data.size:
                rest = torch.empty(total - data.size, dtype=torch.uint8)
                with _answered(request.name, peer):
                    group.recv([rest], peer, _REST).wait()
                data = np.concatenate([data, rest.numpy()])
            replies[peer] = data[_SIZE.itemsize : total]
            self._set_buffer_size(request.name, peer, group.rank(), total)
        for peer, work, _ in sent.sending:
            _wait(work, request.name, peer)
        return np.concatenate(replies) if isinstance(request, Broadcast) else replies

    def _buffer_size(self, name: str, sender: int, receiver: int) -> int:
        return self._buffer_sizes.get((name, sender, receiver), _FIRST_BUFFER)

    def _set_buffer_size(self, name: str, sender: int, receiver: int, last: int) -> None:
        """Set the buffer size of the next message; both ends call it with the same ``last``."""
        self._buffer_sizes[name, sender, receiver] = max(_FIRST_BUFFER, 2 * last)
