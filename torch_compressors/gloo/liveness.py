"""The marks of ranks that still answer, in a store of torch.distributed."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch.distributed as dist

from gradcomp.adapter_api import Marks, ranks_text
from gradcomp.errors import GradcompError, PeerError
from gradcomp_torch.compat import second_connection, store_of

__all__ = ["Liveness", "naming_the_absent", "of_group"]

_calls: defaultdict[tuple[str, str], itertools.count[int]] = defaultdict(itertools.count)
"""Numbers of the calls of a function in a group, which are equal on all ranks."""

SECONDS = 5.0
"""Wait for the marks of the others after a failure: they notice it at about the same time."""

_GRACE = 2.0  # seconds for a store to answer after the wait


class _Store:
    """A store of torch.distributed; a RuntimeError tells that it does not answer."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes | None:
        return self._store.get(key) if self._store.check([key]) else None

    def clone(self) -> _Store:
        return _Store(second_connection(self._store))


class Liveness(Marks):
    """The marks of some ranks under one key, which stay valid.

    Args:
        store: a store of torch.distributed that all ranks share.
        key: the same on every rank.
        rank: this rank.
        ranks: all ranks that leave a mark.
    """

    _store: _Store

    def __init__(self, store: Any, key: str, rank: int, ranks: Sequence[int]) -> None:
        super().__init__(_Store(store), f"gradcomp/{key}", rank, ranks)

    def absent(self, ranks: Collection[int] | None = None) -> list[int] | None:
        """See `Marks.absent`; by a connection of its own, as another thread may wait in the store."""
        return self.missing(0.0)

    def missing(self, seconds: float = SECONDS) -> list[int] | None:
        """Leave this rank's mark, and wait for those of the others.

        Ends after ``seconds`` and a short grace period, even if the store has died or hangs.

        Returns:
            The ranks without a mark, at the last look; None if the store never answered.
        """
        seen: list[list[int]] = []

        def look() -> None:
            with suppress(RuntimeError):  # the store has gone
                # A connection of its own: another thread may wait in the store.
                self._store = self._store.clone()
                self.answer()
                for absent in self.looks(seconds):
                    seen.append(absent)

        looking = threading.Thread(target=look, name="liveness check", daemon=True)
        looking.start()
        looking.join(seconds + _GRACE)
        return seen[-1] if seen else None


def of_group(group: dist.ProcessGroup, key: str) -> Liveness:
    """The liveness check of a process group's ranks, with their numbers in the job."""
    ranks = dist.get_process_group_ranks(group)
    return Liveness(store_of(group), key, dist.get_rank(), ranks)


@contextmanager
def naming_the_absent(
    group: dist.ProcessGroup, function: str, *, warns: bool = False
) -> Iterator[None]:
    """A context for the collectives at the start of a function that all ranks call.

    Args:
        group: process group of the collectives.
        function: its name.
        warns: a wait of some seconds logs a warning; see `Marks.attended`.

    Raises:
        PeerError: ranks have not called the function when a collective fails; it names them.
    """
    number = next(_calls[group.group_name, function])
    call = of_group(group, f"{function}/{number}")
    call.answer()
    try:
        with call.attended(function) if warns else nullcontext():
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
