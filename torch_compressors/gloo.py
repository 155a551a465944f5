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
_FIRST_ROOM = 2**16

# In front of what one rank sends another.
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
        # Always a copy: a round may go on reading what it has sent.
        self.together = torch.cat(self.parts)
        self.ranks = group.size()
        self.parts.clear()
        with _answered(self.first):
            self.work = group.allreduce([self.together])
        return self.work

    def average(self, member: _Member) -> npt.NDArray[Any]:
        assert self.work is not None  # as the engine has launched it
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
    """An all-reduce, which begins at an element of those that it shares."""

    fused: _Fused
    begin: int
    request: AllReduce


@dataclass(frozen=True)
class _Sent:
    """Messages that are under way, by the rank at their other end."""

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
    """Says who is lost, where waiting for its answer fails, or already asking for it."""
    try:
        yield
    except RuntimeError as error:
        lost = "another rank" if peer is None else f"rank {peer}"
        raise ProtocolError(
            f"{lost} does not answer in the exchange '{name}': see what it has printed, and give "
            f"ddp_hook a longer timeout if it is merely slow ({error})"
        ) from error


def _wait(work: dist.Work, name: str, peer: int | None = None) -> None:
    with _answered(name, peer):
        work.wait()


class GlooEngine:
    """Asynchronous collectives on CPU memory.

    All ranks must start and finish the same requests in the same order. All-reduces that are
    started one after the other are launched as one, at `flush`, when they are many bytes, or when
    the first of them is finished.

    Frames go from rank to rank as messages with their size in front. A receiver makes room for what
    the sender last sent under the name, and more; should that be too little, the rest is a second
    message, of which both ends know.

    Args:
        groups: that this rank is in.
    """

    def __init__(self, groups: Mapping[RankGroup, dist.ProcessGroup]) -> None:
        self._groups = groups
        self._fused: dict[tuple[RankGroup, np.dtype[Any]], _Fused] = {}
        self._room: dict[tuple[str, int, int], int] = {}
        # A thread of PyTorch's that is the last one to let go of an all-reduce started in a
        # backward pass needs the interpreter for it, and aborts the process where that is at its
        # end. So it must not be the last one.
        self._works: deque[dist.Work] = deque(maxlen=_KEPT_WORKS)

    def start(self, request: Request) -> _Handle | None:
        """Start a request without waiting, unless this rank is outside its group.

        Raises:
            ProtocolError: another rank has gone.
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
        """Launch the all-reduces that were started so far."""
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
            room = self._room_of(request.name, rank, peer)
            own_room = self._room_of(request.name, peer, rank)
            sent.buffers[peer] = torch.empty(own_room, dtype=torch.uint8)
            with _answered(request.name, peer):
                sent.receiving[peer] = group.recv([sent.buffers[peer]], peer, _BEGINNING)
                sent.sending.append((peer, group.send([message[:room]], peer, _BEGINNING), message))
            sent.rests[peer] = message[room:]
            self._make_room(request.name, rank, peer, message.numel())
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
            self._make_room(request.name, peer, group.rank(), total)
        for peer, work, _ in sent.sending:
            _wait(work, request.name, peer)
        return np.concatenate(replies) if isinstance(request, Broadcast) else replies

    def _room_of(self, name: str, sender: int, receiver: int) -> int:
        return self._room.get((name, sender, receiver), _FIRST_ROOM)

    def _make_room(self, name: str, sender: int, receiver: int, last: int) -> None:
        """Both ends call it, with the size of the same message."""
        self._room[name, sender, receiver] = max(_FIRST_ROOM, 2 * last)
