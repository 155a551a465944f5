"""Which ranks of a job still answer: each leaves a mark in the job's store, and reads the others'."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from gradcomp.adapter_api import ranks_text
from gradcomp.errors import GradcompError, PeerError

__all__ = ["Liveness", "naming_the_absent", "of_group"]

_calls: defaultdict[tuple[str, str], itertools.count[int]] = defaultdict(itertools.count)
"""Numbers of the calls of a function in a group, which are equal on all ranks."""

SECONDS = 5.0
"""Wait for the marks of the others after a failure: they notice it at about the same time."""

_PAUSE = 0.1  # seconds between two looks
_GRACE = 2.0  # seconds for a store to answer after the wait


class Liveness:
    """The marks of some ranks under one key.

    Args:
        store: a store of torch.distributed that all ranks share.
        key: the same on every rank.
        rank: this rank.
        ranks: all ranks that leave a mark.
    """

    def __init__(self, store: Any, key: str, rank: int, ranks: Sequence[int]) -> None:
        self._store = store
        self._key = f"gradcomp/{key}"
        self.rank = rank
        self.ranks = ranks

    def answer(self) -> None:
        """Leave this rank's mark."""
        self._store.set(f"{self._key}/{self.rank}", "1")

    def missing(self, seconds: float = SECONDS) -> list[int] | None:
        """Leave this rank's mark, and wait for those of the others.

        Ends after ``seconds`` and a short grace period, even if the store has died or hangs.

        Returns:
            The ranks without a mark, at the last look; None if the store never answered.
        """
        seen: list[list[int]] = []
        deadline = time.monotonic() + seconds

        def look() -> None:
            # A connection of its own: another thread may wait in the store.
            self._store = self._store.clone()
            self.answer()
            while True:
                absent = [one for one in self.ranks if not self._has_answered(one)]
                seen.append(absent)
                if not absent or time.monotonic() > deadline:
                    return
                time.sleep(_PAUSE)

        def look_safely() -> None:
            try:
                look()
            except RuntimeError:  # the store has gone
                return

        looking = threading.Thread(target=look_safely, name="liveness check", daemon=True)
        looking.start()
        looking.join(seconds + _GRACE)
        return seen[-1] if seen else None

    def _has_answered(self, rank: int) -> bool:
        answered: bool = self._store.check([f"{self._key}/{rank}"])
        return answered


def of_group(group: dist.ProcessGroup, key: str) -> Liveness:
    """The liveness check of a process group's ranks, with their numbers in the job."""
    ranks = dist.get_process_group_ranks(group)
    return Liveness(group.get_group_store(), key, dist.get_rank(), ranks)


@contextmanager
def naming_the_absent(group: dist.ProcessGroup, function: str) -> Iterator[None]:
    """A context for the collectives at the start of a function that all ranks call.

    Args:
        group: process group of the collectives.
        function: its name.

    Raises:
        PeerError: ranks have not called the function when a collective fails; it names them.
    """
    number = next(_calls[group.group_name, function])
    call = of_group(group, f"{function}/{number}")
    call.answer()
    try:
        yield
    except GradcompError:
        raise
    except RuntimeError as error:
        missing = call.missing()
        if not missing:
            raise
        raise PeerError(
            f"{ranks_text(missing)} not call {function}, and the others wait for it: see the output "
            "there, and give init_process_group a longer timeout if ranks only come late"
        ) from error
