"""Which ranks of a Horovod job still answer: marks in the store of horovodrun.

Horovod's own stall check runs on rank 0 and needs an answer of every rank, so a stopped process
silences it. A rank that waits for long, or whose job has failed, renews a mark in the key-value
store that horovodrun keeps for Gloo. A rank whose mark does not change does not answer.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

__all__ = ["Liveness", "Store", "job_store", "seconds_of"]

_SCOPE = "gradcomp"
_HTTP_SECONDS = 5.0
_PAUSE = 0.1  # seconds between two looks at the marks
_ENDED = b"ended"


def seconds_of(variable: str, default: float) -> float:
    """A time limit of Horovod from the environment, in seconds."""
    try:
        return float(os.environ.get(variable, ""))
    except ValueError:
        return default


class Store:
    """The key-value store of horovodrun, in the launcher's process.

    Args:
        url: of the store.
        rank: this rank.
        size: number of ranks in the job.
    """

    def __init__(self, url: str, rank: int, size: int) -> None:
        self._url = url
        self.rank, self.size = rank, size
        # Never through a proxy: the launcher is in the ranks' own network.
        self._open = build_opener(ProxyHandler({})).open

    def set(self, key: str, value: bytes) -> None:
        """Set a key.

        Raises:
            OSError: the store does not answer.
        """
        self._ask(Request(f"{self._url}/{_SCOPE}/{key}", value, method="PUT"))

    def get(self, key: str) -> bytes | None:
        """The value of a key; None if it was never set.

        Raises:
            OSError: the store does not answer.
        """
        try:
            return self._ask(Request(f"{self._url}/{_SCOPE}/{key}"))
        except HTTPError as error:
            if error.code == 404:
                return None
            raise

    def _ask(self, request: Request) -> bytes:
        try:
            with self._open(request, timeout=_HTTP_SECONDS) as reply:
                answer: bytes = reply.read()
                return answer
        except HTTPException as error:
            raise OSError(f"horovodrun's store does not answer: {error}") from error


@lru_cache(1)
def job_store() -> Store | None:
    """The store of this job; None without horovodrun on Gloo, and for elastic jobs."""
    names = ("GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT", "RANK", "SIZE")
    address, port, rank, size = (os.environ.get(f"HOROVOD_{name}", "") for name in names)
    numbers = port.isdigit() and rank.isdigit() and size.isdigit()
    if not address or not numbers or os.environ.get("HOROVOD_ELASTIC") == "1":
        return None
    return Store(f"http://{address}:{port}", int(rank), int(size))


class Liveness:
    """The marks of all ranks; one object for each process.

    Args:
        store: of the job.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._beats = itertools.count()

    def answer(self) -> None:
        """Renew this rank's mark; a store that does not answer is no error."""
        self._mark(str(next(self._beats)).encode())

    def missing(
        self,
        seconds: float,
        ranks: Collection[int] | None = None,
        over: Callable[[], bool] = lambda: False,
    ) -> list[int]:
        """Renew this rank's mark, and wait until those of the others change.

        Args:
            seconds: longest wait; a rank that waits, too, renews its mark more often than that.
            ranks: the ranks to ask; None for all.
            over: whether the answers no longer matter.

        Returns:
            The ranks whose marks have not changed; empty if ``over()`` or if the store is lost.
        """
        deadline = time.monotonic() + seconds
        asked = range(self._store.size) if ranks is None else ranks
        absent = {rank for rank in asked if rank != self._store.rank}
        try:
            before = {rank: self._read(rank) for rank in absent}
            while absent and not over():
                self.answer()
                absent = {one for one in absent if self._read(one) in (before[one], None)}
                absent = {one for one in absent if before[one] != _ENDED}
                if time.monotonic() > deadline:
                    return sorted(absent)
                time.sleep(_PAUSE)
        except OSError:
            pass
        return []

    def end(self) -> None:
        """Leave a mark that stays valid: this rank has answered, and ends."""
        self._mark(_ENDED)

    def _read(self, rank: int) -> bytes | None:
        return self._store.get(f"rank-{rank}")

    def _mark(self, value: bytes) -> None:
        try:
            self._store.set(f"rank-{self._store.rank}", value)
        except OSError:  # the launcher has gone, and with it the job
            return
