"""Gathers, all-to-alls and broadcasts over a process group of Gloo: one message for several requests.

A message has the sizes of its parts, one for each request, then the parts, then a mark.

A receiver's buffer has twice the size of the last message of the same requests and sender, and at
least 64 KiB. If this is too small, the rest is a second message; both ends know the buffer's size.
The mark belongs to the requests: without it, a message shorter than its sizes would count as
received, with memory of this process behind its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from gradcomp.adapter_api import AllGather, AllToAll, Broadcast, ByteArray, room
from gradcomp.errors import ProtocolError

__all__ = ["BROADCASTS", "MESSAGES", "NEVER_SENT", "Exchange", "GroupMessages", "Part"]

Exchange: TypeAlias = AllGather | AllToAll | Broadcast

_TOGETHER = 8
"""Requests in a message at most, so that the first parts travel while later ones are encoded."""

_FIRST_BUFFER = 2**16
_SIZE = np.dtype("<u8")
_MARK_BYTES = 8

# Tags of messages between two ranks; the next one is that of their rests. Messages of one tag arrive in the
# order of sending.
MESSAGES, BROADCASTS, NEVER_SENT = 0, 2, 4


@dataclass(eq=False)
class _Message:
    """Requests that travel together.

    Attributes:
        requests: in order, the same on every rank.
        own_parts: this rank's part for itself, for each request.
        mark: the end of the message.
        replies: of each request, once all ranks' messages have arrived.
        buffers, receiving, rests: by the rank at the other end.
        sending: with that rank, and the memory that is being sent.
    """

    requests: list[Exchange] = field(default_factory=list)
    own_parts: list[ByteArray] = field(default_factory=list)
    mark: ByteArray = field(default_factory=lambda: np.empty(0, np.uint8))
    replies: list[Any] | None = None
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)
    receiving: dict[int, dist.Work] = field(default_factory=dict)
    sending: list[tuple[int, dist.Work, torch.Tensor]] = field(default_factory=list)
    rests: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The first request's name, and the number of others."""
        first, others = self.requests[0].name, len(self.requests) - 1
        return f"{first}+{others}" if others else first

    @property
    def head_bytes(self) -> int:
        """Bytes of the sizes at the beginning."""
        return len(self.requests) * _SIZE.itemsize


@dataclass(frozen=True)
class Part:
    """A request, as the part of a message."""

    message: _Message
    index: int
    messages: GroupMessages


class GroupMessages:
    """The messages among the ranks of a process group.

    All ranks must add and finish the same requests in the same order. They wait for others to travel
    with: until there are 8, until `send`, or until one of them, or of an earlier message, is finished.
    Broadcasts do not wait.

    Args:
        group: on Gloo.
        ranks: numbers in the job of the group's ranks.
        limit: largest part of one rank, in bytes; a broadcast may have as much for each rank of the job.
        of_job: number of the job's ranks.
        answered: of requests and the awaited rank: a context that names lost ranks.
        under_way: holds the messages that have not arrived. The owner of ``group`` keeps it as long as the group: while
            data waits for a buffer that is gone, Gloo's thread polls the connection without a pause.
        tag: `BROADCASTS` for the messages of broadcasts alone, whatever other messages are under way.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        ranks: Sequence[int],
        limit: int,
        of_job: int,
        answered: Callable[[str, int], AbstractContextManager[None]],
        under_way: set[object],
        tag: int = MESSAGES,
    ) -> None:
        self._group = group
        self._ranks = ranks
        self._limit = limit
        self._of_job = of_job
        self._answered_by = answered
        self._under_way = under_way
        self._beginning, self._rest = tag, tag + 1
        self._count = 0
        self._waiting = _Message()
        self._buffer_sizes: dict[tuple[str, int, int], int] = {}

    def add(self, request: Exchange) -> Part:
        """Add a request without waiting for others.

        Raises:
            ProtocolError: the connection to another rank is lost.
        """
        if isinstance(request, Broadcast):
            message = _Message([request])
            self._send(message)
            return Part(message, 0, self)
        message = self._waiting
        part = Part(message, len(message.requests), self)
        message.requests.append(request)
        if len(message.requests) == _TOGETHER:
            self.send()
        return part

    def send(self) -> None:
        """Send the requests that wait."""
        if self._waiting.requests:
            message, self._waiting = self._waiting, _Message()
            self._send(message)

    def finish(self, part: Part) -> Any:
        """Wait for the reply to a request.

        Raises:
            ProtocolError: another rank does not answer, or sends something else.
        """
        message = part.message
        if message.replies is None:
            self.send()  # later requests travel while this rank waits for earlier ones
            message.replies = self._received(message)
        return message.replies[part.index]

    def _send(self, message: _Message) -> None:
        size, rank = self._group.size(), self._group.rank()
        of_ranks = [_parts(request, size) for request in message.requests]
        message.own_parts = [parts[rank] for parts in of_ranks]
        message.mark = self._next_mark(message)
        alike = not any(isinstance(request, AllToAll) for request in message.requests)
        data = None
        self._under_way.add(message)
        for peer in range(size):
            if peer == rank:
                continue
            if data is None or not alike:
                data = _joined([parts[peer] for parts in of_ranks], message.mark)
            self._send_to(peer, message, data)

    def _send_to(self, peer: int, message: _Message, data: torch.Tensor) -> None:
        rank, label = self._group.rank(), message.label
        capacity = self._buffer_size(label, rank, peer)
        own_capacity = self._buffer_size(label, peer, rank)
        message.buffers[peer] = torch.from_numpy(room(own_capacity, np.uint8))
        with self._answered(message, peer):
            message.receiving[peer] = self._group.recv(
                [message.buffers[peer]], peer, self._beginning
            )
            work = self._group.send([data[:capacity]], peer, self._beginning)
        message.sending.append((peer, work, data))
        message.rests[peer] = data[capacity:]
        self._set_buffer_size(label, rank, peer, data.numel())

    def _received(self, message: _Message) -> list[Any]:
        group = self._group
        replies = [[part] * group.size() for part in message.own_parts]
        for peer, rest in message.rests.items():
            if rest.numel():
                with self._answered(message, peer):
                    message.sending.append((peer, group.send([rest], peer, self._rest), rest))
        for peer in message.receiving:
            data, sizes = self._received_from(peer, message)
            begin = message.head_bytes
            for of_ranks, size in zip(replies, sizes, strict=True):
                of_ranks[peer] = data[begin : begin + size]
                begin += size
        for peer, work, _ in message.sending:
            with self._answered(message, peer):
                work.wait()
        message.buffers.clear()
        message.sending.clear()
        self._under_way.discard(message)
        return [
            np.concatenate(of_ranks) if isinstance(request, Broadcast) else of_ranks
            for request, of_ranks in zip(message.requests, replies, strict=True)
        ]

    def _received_from(self, peer: int, message: _Message) -> tuple[ByteArray, list[int]]:
        """A rank's message, and the sizes of its parts."""
        with self._answered(message, peer):
            message.receiving[peer].wait()
        data: ByteArray = message.buffers[peer].numpy()
        sizes = data[: message.head_bytes].view(_SIZE).tolist()
        for request, size in zip(message.requests, sizes, strict=True):
            self._check_size(message, peer, request, size)
        end = message.head_bytes + sum(sizes)
        total = end + _MARK_BYTES
        if total > data.size:
            rest = torch.empty(total - data.size, dtype=torch.uint8, device="cpu")
            with self._answered(message, peer):
                self._group.recv([rest], peer, self._rest).wait()
            data = np.concatenate([data, rest.numpy()])
        if not np.array_equal(data[end:total], message.mark):
            raise self._damaged(
                message,
                peer,
                f"it is shorter than its size, {sum(sizes)} bytes, or belongs to another exchange",
            )
        self._set_buffer_size(message.label, peer, self._group.rank(), total)
        return data, sizes

    def _next_mark(self, message: _Message) -> ByteArray:
        """The same on every rank of the group, and another one for each message."""
        self._count += 1
        text = "\n".join([*(request.name for request in message.requests), str(self._count)])
        return np.frombuffer(blake2b(text.encode(), digest_size=_MARK_BYTES).digest(), np.uint8)

    def _check_size(self, message: _Message, peer: int, request: Exchange, size: int) -> None:
        # A broadcast carries the replies of several ranks together.
        limit = self._limit * (self._of_job if isinstance(request, Broadcast) else 1)
        if size > limit:
            problem = f"its size is {size} bytes; it must be in [0, {limit}]"
            raise self._damaged(message, peer, problem)

    def _damaged(self, message: _Message, peer: int, problem: str) -> ProtocolError:
        return ProtocolError(
            f"rank {self._ranks[peer]} sent a damaged message in the exchange '{message.label}': "
            f"{problem}: see whether all ranks run the same script and versions"
        )

    def _answered(self, message: _Message, peer: int) -> AbstractContextManager[None]:
        return self._answered_by(message.label, self._ranks[peer])

    def _buffer_size(self, label: str, sender: int, receiver: int) -> int:
        return self._buffer_sizes.get((label, sender, receiver), _FIRST_BUFFER)

    def _set_buffer_size(self, label: str, sender: int, receiver: int, last: int) -> None:
        """Set the buffer size of the next message; both ends call it with the same ``last``."""
        self._buffer_sizes[label, sender, receiver] = max(_FIRST_BUFFER, 2 * last)


def _parts(request: Exchange, size: int) -> list[ByteArray]:
    """A request's data for each rank."""
    if isinstance(request, AllToAll):
        return np.split(request.data, np.cumsum(request.splits)[:-1])
    return [request.frame if isinstance(request, AllGather) else request.data] * size


def _joined(parts: Sequence[ByteArray], mark: ByteArray) -> torch.Tensor:
    """The message to a rank."""
    sizes = np.array([part.size for part in parts], _SIZE).view(np.uint8)
    total = sizes.size + sum(part.size for part in parts) + mark.size
    whole = np.concatenate([sizes, *parts, mark], out=room(total, np.uint8))
    return torch.from_numpy(whole)
