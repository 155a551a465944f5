"""An engine with threads of this process as ranks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from gradcomp.exchange.rounds import AllGather, AllReduce, Broadcast, Request

RANKS = 3
PATIENCE = 5.0


class Board:
    """The requests of all ranks, by name."""

    def __init__(self, ranks: int = RANKS) -> None:
        self.ranks = ranks
        self.changed = threading.Condition()
        self.posted: dict[Any, dict[int, Request]] = {}


class Engine:
    """One rank's collectives: asynchronous, in any order, matched by name; like Horovod's.

    A rank that waits in vain fails after ``patience`` seconds, as in a deadlock.
    """

    def __init__(self, board: Board, rank: int, patience: float = PATIENCE) -> None:
        self.board = board
        self.rank = rank
        self.patience = patience
        self.started: list[str] = []

    def start(self, request: Request) -> Any:
        with self.board.changed:
            key = request.name, Counter(self.started)[request.name]
            self.started.append(request.name)
            self.board.posted.setdefault(key, {})[self.rank] = request
            self.board.changed.notify_all()
        return key

    def finish(self, handle: Any) -> Any:
        posted = self.board.posted[handle]
        with self.board.changed:
            if not self.board.changed.wait_for(
                lambda: len(posted) == self.board.ranks, self.patience
            ):
                raise TimeoutError(f"{handle} was started by ranks {sorted(posted)} only")
        requests = [posted[rank] for rank in range(self.board.ranks)]
        texts = [one.data for one in requests if isinstance(one, Broadcast)]
        if texts:
            return np.concatenate(texts)
        arrays = [one.array for one in requests if isinstance(one, AllReduce)]
        if arrays:
            kind, factor = arrays[0].dtype.type, AllReduce.headroom(arrays[0].dtype, len(arrays))
            scaled = [array * kind(factor) for array in arrays]
            return sum(scaled[1:], scaled[0]) * kind(1 / (factor * len(arrays)))
        return [one.frame for one in requests if isinstance(one, AllGather)]


def on_all_ranks(rank_main: Callable[[int], Any]) -> list[Any]:
    """The result of each rank's function; raises the error of the first that fails."""
    results: list[Any] = [None] * RANKS
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = rank_main(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results
