"""Rounds over process groups of Gloo, which matches collectives by the order of their launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
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
    ranks_text,
    room,
)
from gradcomp.errors import ProtocolError
from torch_compressors.roll_call import RollCall, of_group
from torch_compressors.works import keep

__all__ = ["GlooEngine", "message_limit"]

_FUSED_BYTES = 4 * 2**20
_FIRST_BUFFER = 2**16

# The size that precedes the data in each message between two ranks, and the mark that follows them.
_SIZE = np.dtype("<u8")
_MARK_BYTES = 8
_EXTRA = _SIZE.itemsize + _MARK_BYTES

# Bytes of an element, of a tensor and of a message that `message_limit` allows for. Frames of the
# built-in codecs have at most 4.2 bytes an element besides headers; plug-ins may have more.
_ELEMENT, _TENSOR, _MESSAGE = 16, 2**10, 2**16

# Tags of messages between two ranks. Messages of one tag arrive in the order of sending.
_BEGINNING, _REST, _NEVER_SENT = 0, 1, 2


@dataclass
class _Fused:
    """Arrays of one dtype that are all-reduced together."""

    parts: list[torch.Tensor] = field(default_factory=list)
    first: str = ""
    numel: int = 0
    nbytes: int = 0
    alone: bool = False
    ranks: int = 0
    together: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    work: dist.Work | None = None
    answered: _Answered | None = None

    def add(self, request: AllReduce) -> _Member:
        part = torch.from_numpy(request.array).reshape(-1)
        self.alone = request.overwrite and not self.parts
        member = _Member(self, self.numel, request)
        self.parts.append(part)
        self.first = self.first or request.name
        self.numel += part.numel()
        self.nbytes += request.nbytes
        return member

    def launch(self, group: dist.ProcessGroup, answered: _Answered) -> dist.Work:
        # A copy, if a round may still read the array.
        self.together = self.parts[0] if self.alone else torch.cat(self.parts)
        self.ranks = group.size()
        self.parts.clear()
        self.answered = answered
        with answered(self.first):
            self.work = group.allreduce([self.together])
        return self.work

    def average(self, member: _Member) -> npt.NDArray[Any]:
        assert self.work is not None  # launched by the engine
        assert self.answered is not None
        if self.ranks:
            with self.answered(self.first):
                self.work.wait()
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
    mark: ByteArray
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)
    receiving: dict[int, dist.Work] = field(default_factory=dict)
    sending: list[tuple[int, dist.Work, torch.Tensor]] = field(default_factory=list)
    rests: dict[int, torch.Tensor] = field(default_factory=dict)


_Handle: TypeAlias = _Member | _Sent

# Of a request's name and the awaited rank, if one is known: a context that turns RuntimeError of
# Gloo into ProtocolError, with the names of lost ranks.
_Answered: TypeAlias = Callable[..., AbstractContextManager[None]]


def message_limit(numels: Iterable[int], bucket_bytes: int) -> int:
    """Largest message of an honest rank, in bytes, for gradients of these numbers of elements.

    A round carries one bucket: a tensor, or several of ``bucket_bytes`` in float32 before the last.
    """
    numels = list(numels)
    elements = min(sum(numels), bucket_bytes // 4 + max(numels, default=0))
    return _ELEMENT * elements + _TENSOR * len(numels) + _MESSAGE


def _message(data: ByteArray, mark: ByteArray) -> torch.Tensor:
    size = np.array([data.size], _SIZE).view(np.uint8)
    whole = np.concatenate([size, data, mark], out=room(data.size + _EXTRA, np.uint8))
    return torch.from_numpy(whole)


class GlooEngine:
    """Asynchronous collectives on CPU memory.

    All ranks must start and finish the same requests in the same order. Successive all-reduces are
    launched as one, at `flush`, when they reach 4 MiB, or when the first of them is finished.

    Frames travel as messages that begin with their size. A receiver's buffer has twice the size of
    the last message of the same name and sender, and at least 64 KiB. If this is too small, the
    rest is a second message; both ends know the buffer's size. Messages end with a mark that belongs
    to their request: without it, a message shorter than its size would count as received, with
    memory of this process behind its end.

    Args:
        groups: the process group of each group that this rank is in.
        limit: largest message that a rank may send, in bytes: see `message_limit`.
        where: the caller's function that has a timeout, for messages.
        roll_call: of the ranks in ``all``; None for that of the job's group.
    """

    def __init__(
        self,
        groups: Mapping[RankGroup, dist.ProcessGroup],
        limit: int,
        where: str = "ddp_hook",
        roll_call: RollCall | None = None,
    ) -> None:
        self._groups = groups
        self._limit = limit
        self._where = where
        self._roll_call = roll_call or of_group(groups["all"], "fault")
        self._ranks = self._roll_call.ranks
        self._requests: Counter[RankGroup] = Counter()
        self._fused: dict[tuple[RankGroup, np.dtype[Any]], _Fused] = {}
        self._buffer_sizes: dict[tuple[str, int, int], int] = {}

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
            keep(fused.launch(self._groups[group], self._answered))
        self._fused.clear()

    def _add(self, request: AllReduce) -> _Member:
        if request.overwrite and request.nbytes >= _FUSED_BYTES:
            self.flush()  # it needs no copy if it travels alone
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
        sent = _Sent(request, group, parts[rank], self._next_mark(request))
        message = None
        for peer in range(size):
            if peer == rank:
                continue
            if message is None or isinstance(request, AllToAll):
                message = _message(parts[peer], sent.mark)
            capacity = self._buffer_size(request.name, rank, peer)
            own_capacity = self._buffer_size(request.name, peer, rank)
            sent.buffers[peer] = torch.from_numpy(room(own_capacity, np.uint8))
            with self._answered(request.name, group, peer):
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
                with self._answered(request.name, group, peer):
                    sent.sending.append((peer, group.send([rest], peer, _REST), rest))
        for peer, work in sent.receiving.items():
            with self._answered(request.name, group, peer):
                work.wait()
            data = sent.buffers[peer].numpy()
            size = self._checked_size(sent, peer, int(data[: _SIZE.itemsize].view(_SIZE)[0]))
            total = size + _EXTRA
            if total > data.size:
                rest = torch.empty(total - data.size, dtype=torch.uint8)
                with self._answered(request.name, group, peer):
                    group.recv([rest], peer, _REST).wait()
                data = np.concatenate([data, rest.numpy()])
            end = total - _MARK_BYTES
            if not np.array_equal(data[end:total], sent.mark):
                raise ProtocolError(
                    f"rank {self._in_job(group, peer)} sent a damaged message in the exchange "
                    f"'{request.name}': it is shorter than its size, {size} bytes, or belongs to "
                    "another exchange: see whether all ranks run the same script and versions"
                )
            replies[peer] = data[_SIZE.itemsize : end]
            self._set_buffer_size(request.name, peer, group.rank(), total)
        for peer, work, _ in sent.sending:
            with self._answered(request.name, group, peer):
                work.wait()
        return np.concatenate(replies) if isinstance(request, Broadcast) else replies

    def _next_mark(self, request: Request) -> ByteArray:
        """The same on every rank of the request's group, and another one for each request."""
        self._requests[request.group] += 1
        text = f"{request.name}\n{self._requests[request.group]}"
        return np.frombuffer(blake2b(text.encode(), digest_size=_MARK_BYTES).digest(), np.uint8)

    def _checked_size(self, sent: _Sent, peer: int, size: int) -> int:
        # A broadcast carries the replies of several ranks together.
        together = len(self._ranks) if isinstance(sent.request, Broadcast) else 1
        if size > together * self._limit:
            raise ProtocolError(
                f"rank {self._in_job(sent.group, peer)} sent a damaged message in the exchange "
                f"'{sent.request.name}': its size is {size} bytes; it must be in [0, "
                f"{together * self._limit}]: see whether all ranks run the same script and versions"
            )
        return size

    @contextmanager
    def _answered(
        self, name: str, group: dist.ProcessGroup | None = None, peer: int | None = None
    ) -> Iterator[None]:
        """A context that turns RuntimeError of Gloo into ProtocolError, with the lost rank's name.

        The awaited rank is not always the lost one: it may have given up because of a third rank.
        """
        try:
            yield
        except RuntimeError as error:
            known = None if group is None or peer is None else self._in_job(group, peer)
            raise ProtocolError(
                f"{self._lost(known)} not answer in the exchange '{name}': see its output, and give "
                f"{self._where} a longer timeout if the rank is only slow ({error})"
            ) from error

    def _lost(self, awaited: int | None) -> str:
        if len(self._ranks) == 2:  # no need to ask
            missing = [rank for rank in self._ranks if rank != self._roll_call.rank]
        else:
            for group in self._groups.values():
                _disconnect(group)
            missing = self._roll_call.missing() or []
            if not missing and awaited is not None:
                missing = [awaited]
        return ranks_text(missing) if missing else "another rank does"

    def _in_job(self, group: dist.ProcessGroup, peer: int) -> int:
        """The number in the job of a rank of a group."""
        if group is self._groups["all"]:
            return self._ranks[peer]
        return dist.get_process_group_ranks(group)[peer]

    def _buffer_size(self, name: str, sender: int, receiver: int) -> int:
        return self._buffer_sizes.get((name, sender, receiver), _FIRST_BUFFER)

    def _set_buffer_size(self, name: str, sender: int, receiver: int, last: int) -> None:
        """Set the buffer size of the next message; both ends call it with the same ``last``."""
        self._buffer_sizes[name, sender, receiver] = max(_FIRST_BUFFER, 2 * last)


def _disconnect(group: dist.ProcessGroup) -> None:
    """Close a failed group's connections, so that ranks that wait for this one in a ring fail, too.

    Gloo closes all of them when one wait times out; ``abort`` does not.
    """
    for peer in set(range(group.size())) - {group.rank()}:
        with suppress(RuntimeError):
            unused = torch.empty(1, dtype=torch.uint8)
            group.recv([unused], peer, _NEVER_SENT).wait(timedelta(milliseconds=1))
