"""Which ranks of a job still answer: each leaves a mark in the job's store, and reads the others'."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from gradcomp.runtime.agree.comparison import ranks_text
from gradcomp.runtime.state.attendance import attended

__all__ = ["Marks"]

_PAUSE = 0.1  # seconds between two looks
_LASTING = b"answered"


class Store(Protocol):
    """A key-value store that all ranks of a job share; raises OSError where it does not answer."""

    def set(self, key: str, value: bytes) -> None:
        """Set a key."""

    def get(self, key: str) -> bytes | None:
        """The value of a key; None if it was never set."""


class Marks:
    """The marks of some ranks under one prefix.

    Args:
        store: of the job.
        prefix: of the keys; the same on every rank.
        rank: this rank.
        ranks: all ranks that leave a mark.
    """

    def __init__(self, store: Store, prefix: str, rank: int, ranks: Sequence[int]) -> None:
        self._store = store
        self._prefix = prefix
        self._renewals = itertools.count()
        self.rank = rank
        self.ranks = ranks

    def answer(self) -> None:
        """Leave a mark that stays valid; a store that does not answer is no error."""
        self._mark(_LASTING)

    def renew(self) -> None:
        """Leave a new mark, which counts in looks that have begun; no error as in `answer`."""
        self._mark(str(next(self._renewals)).encode())

    def looks(self, seconds: float, ranks: Collection[int] | None = None) -> Iterator[list[int]]:
        """Yield the other ranks that have left no mark since the first look, and no lasting one.

        At least one list, until it is empty or the time is over. If the store does not answer,
        nobody is missing.

        Args:
            seconds: of all looks together, at least 0.
            ranks: the ranks to ask; None for all.
        """
        deadline = time.monotonic() + seconds
        absent = [rank for rank in (self.ranks if ranks is None else ranks) if rank != self.rank]
        try:
            before = {rank: self._read(rank) for rank in absent}
            while True:
                absent = [rank for rank in absent if not self._is_new(rank, before[rank])]
                yield absent
                if not absent or time.monotonic() > deadline:
                    return
                time.sleep(_PAUSE)
        except OSError:
            yield []

    @contextmanager
    def attended(self, call: str, ranks: Collection[int] | None = None) -> Iterator[None]:
        """A context for the wait until all ranks are in ``call``; see `attendance.attended`.

        Args:
            ranks: those that must call it; None for all.
        """

        def absent() -> str:
            missing = self.absent(ranks)
            return (
                "another rank does" if missing is None else ranks_text(missing) if missing else ""
            )

        self.answer()
        with attended(call, absent):
            yield

    def absent(self, ranks: Collection[int] | None = None) -> list[int] | None:
        """The other ranks without a lasting mark, at one look; None if the store does not answer."""
        return next(iter(self.looks(0.0, ranks)))

    def wait_for_renewals(
        self,
        seconds: float,
        ranks: Collection[int] | None = None,
        over: Callable[[], bool] = lambda: False,
    ) -> list[int]:
        """Renew this rank's mark until the others have renewed theirs; see `looks`.

        Args:
            over: whether the answers no longer matter.

        Returns:
            The ranks that have not; empty if ``over()``.
        """
        missing: list[int] = []
        for absent in self.looks(seconds, ranks):
            if over():
                return []
            self.renew()
            missing = absent
        return missing

    def _is_new(self, rank: int, before: bytes | None) -> bool:
        mark = self._read(rank)
        return mark == _LASTING or mark not in (None, before)

    def _read(self, rank: int) -> bytes | None:
        return self._store.get(f"{self._prefix}-{rank}")

    def _mark(self, value: bytes) -> None:
        with suppress(OSError):
            self._store.set(f"{self._prefix}-{self.rank}", value)
