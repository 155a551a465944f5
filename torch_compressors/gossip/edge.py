"""Questions and answers between an active and a passive rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from gradcomp.adapter_api import ByteArray
from torch_compressors.gossip.transport import naming_the_lost, wait_for

__all__ = ["Edge"]

_END, _QUESTION = 0, 1

# A passive rank waits for questions as long as its peer trains: `Edge.serve`.
_FOR_EVER = timedelta(days=365)


class Edge:
    """An edge between two ranks, over a process group of their own: no other rank waits with them.

    Args:
        peer: the rank at the other end.
        group: process group of both ranks.
        timeout, retries: see `Transport`.
    """

    def __init__(self, peer: int, group: dist.ProcessGroup, timeout: float, retries: int) -> None:
        self._peer = peer
        self._group = group
        self._times = (timeout, retries)
        self._where = f"exchange with rank {peer}"

    def ask(self, question: ByteArray) -> ByteArray:
        """On the active rank: the answer of the passive rank, of as many bytes as the question.

        Raises:
            PeerError: the passive rank has died, or does not answer.
        """
        answer = torch.empty(question.nbytes, dtype=torch.uint8)
        with self._naming():
            receiving = dist.irecv(answer, self._peer, self._group)
            self._send(_QUESTION, question)
            self._wait(receiving)
        return answer.numpy()

    def end(self) -> None:
        """On the active rank: let the peer's `serve` return."""
        with self._naming():
            self._send(_END)

    def serve(self, nbytes: int, answer: Callable[[ByteArray], ByteArray]) -> None:
        """On the passive rank: answer questions of ``nbytes`` until the active rank calls `end`.

        Waits for questions without a limit, unless the connection breaks.

        Raises:
            PeerError: the active rank has died, or does not complete a question in time.
        """
        kind = torch.empty(1, dtype=torch.uint8)
        question = torch.empty(nbytes, dtype=torch.uint8)
        with self._naming():
            while True:
                dist.irecv(kind, self._peer, self._group).wait(_FOR_EVER)  # type: ignore[union-attr]
                if int(kind) == _END:
                    return
                self._wait(dist.irecv(question, self._peer, self._group))
                self._send(answer(question.numpy()))

    def _send(self, *parts: int | ByteArray) -> None:
        for part in parts:
            data = np.array([part], np.uint8) if isinstance(part, int) else part
            self._wait(dist.isend(torch.from_numpy(data), self._peer, self._group))

    def _wait(self, work: dist.Work | None) -> None:
        wait_for(self._where, [(self._peer, work)], *self._times)

    def _naming(self) -> AbstractContextManager[None]:
        return naming_the_lost(self._where, f"rank {self._peer}")
