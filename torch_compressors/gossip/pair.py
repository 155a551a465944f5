"""Questions and answers between an active and a passive rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from gradcomp.adapter_api import ByteArray
from gradcomp.errors import ProtocolError
from torch_compressors.gossip.groups import GossipGroups
from torch_compressors.gossip.tagged import buffer_for, opened, tagged
from torch_compressors.gossip.transport import naming_the_lost, wait_for

__all__ = ["Pair"]

_END, _QUESTION = 0, 1

# A passive rank waits for questions as long as its peer trains: `Pair.serve`.
_FOR_EVER = timedelta(days=365)


class Pair:
    """This rank and a peer, over a process group for the two alone: no other rank waits with them.

    Args:
        peer: the other rank.
        groups: with a group of both ranks.
        timeout, retries: see `Transport`.
    """

    def __init__(self, peer: int, groups: GossipGroups, timeout: float, retries: int) -> None:
        self._peer = peer
        self._groups = groups
        self._ranks = (min(peer, dist.get_rank()), max(peer, dist.get_rank()))
        self._times = (timeout, retries)
        self._where = f"exchange with rank {peer}"
        self._count = 0
        """Number of messages that begin an exchange; equal at both ends."""

    def ask(self, question: ByteArray) -> ByteArray:
        """On the active rank: the answer of the passive rank, of as many bytes as the question.

        Raises:
            PeerError: the passive rank has died, or does not answer.
            ProtocolError: its answer is damaged.
        """
        answer = buffer_for(question.nbytes)
        with self._naming(), self._groups.request(self._ranks) as group:
            receiving = dist.irecv(answer, self._peer, group)
            self._begin(_QUESTION, group)
            self._send(question, "question", group)
            self._wait(receiving)
        return self._opened(answer, "answer")

    def end(self) -> None:
        """On the active rank: let the peer's `serve` return."""
        with self._naming(), self._groups.request(self._ranks) as group:
            self._begin(_END, group)

    def serve(self, nbytes: int, answer: Callable[[ByteArray], ByteArray]) -> None:
        """On the passive rank: answer questions of ``nbytes`` until the active rank calls `end`.

        Waits for questions without a limit, unless the connection breaks.

        Raises:
            PeerError: the active rank has died, or does not complete a question in time.
            ProtocolError: its message is damaged, or of an unknown kind.
        """
        beginning, question = buffer_for(1), buffer_for(nbytes)
        with self._naming(), self._groups.request(self._ranks) as group:
            while True:
                work = dist.irecv(beginning, self._peer, group)
                work.wait(_FOR_EVER)  # type: ignore[union-attr]
                self._count += 1
                kind = int(self._opened(beginning, "kind")[0])
                if kind == _END:
                    return
                if kind != _QUESTION:
                    raise ProtocolError(
                        f"{self._where}: it sent a message of kind {kind}; it must be {_END} or "
                        f"{_QUESTION}: see whether all ranks run the same script and versions"
                    )
                self._wait(dist.irecv(question, self._peer, group))
                self._send(answer(self._opened(question, "question")), "answer", group)

    def _begin(self, kind: int, group: dist.ProcessGroup) -> None:
        self._count += 1
        self._send(np.array([kind], np.uint8), "kind", group)

    def _send(self, data: ByteArray, part: str, group: dist.ProcessGroup) -> None:
        self._wait(dist.isend(tagged(data, self._name(part)), self._peer, group))

    def _opened(self, message: torch.Tensor, part: str) -> ByteArray:
        return opened(message, self._name(part), self._peer)

    def _name(self, part: str) -> str:
        """The same at both ends."""
        low, high = self._ranks
        return f"exchange {self._count} of ranks {low} and {high}, {part}"

    def _wait(self, work: dist.Work | None) -> None:
        wait_for(self._where, [(self._peer, work)], *self._times)

    def _naming(self) -> AbstractContextManager[None]:
        return naming_the_lost(self._where, f"rank {self._peer}")
