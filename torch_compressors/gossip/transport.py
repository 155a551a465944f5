"""Gossip rounds over torch.distributed: bytes between two ranks, with a bound on every wait."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gradcomp.adapter_api import ByteArray, Exchange, GossipRound
from gradcomp.errors import GradcompError, PeerError

__all__ = ["Transport", "check_times", "lost", "naming_the_lost", "patiently", "wait_for"]


def check_times(timeout: float, retries: int) -> timedelta:
    """How long to wait in all.

    Raises:
        GradcompError: a number is out of its range.
    """
    if not timeout > 0:
        raise GradcompError(f"timeout is {timeout}; it must be above 0 seconds")
    if retries < 0:
        raise GradcompError(f"retries is {retries}; it must be at least 0")
    return timedelta(seconds=timeout * (retries + 1))


class Transport:
    """Sends and receives over a process group of its own, on Gloo; every rank must make one.

    Args:
        ranks: those that gossip, by the numbers that topologies have for them; all by default.
        timeout: seconds after which a peer counts as slow, above 0. Then a warning names it, and
            the wait goes on.
        retries: how often the wait goes on; after that `PeerError` is raised.
    """

    def __init__(
        self, ranks: Sequence[int] | None = None, *, timeout: float = 30.0, retries: int = 2
    ) -> None:
        self._limit = check_times(timeout, retries)
        self._timeout = timeout
        self._retries = retries
        self._ranks = range(dist.get_world_size()) if ranks is None else ranks
        self._group = dist.new_group(list(self._ranks), self._limit, "gloo")

    def run(self, one: GossipRound) -> None:
        """Run a round to its end.

        Raises:
            PeerError: a peer has died, or has not answered in ``timeout`` seconds and as long again
                for each of the retries. Nothing can be exchanged after that.
        """
        reply: Mapping[int, ByteArray] | None = None
        while True:
            try:
                request = next(one) if reply is None else one.send(reply)
            except StopIteration:
                return
            reply = self._exchange(request)

    def _exchange(self, request: Exchange) -> dict[int, ByteArray]:
        sizes = dict.fromkeys(request.sources, request.nbytes)
        if request.nbytes is None:
            lengths = {
                peer: np.array([data.nbytes], np.int64).view(np.uint8)
                for peer, data in request.messages.items()
            }
            told = self._swap(request.name, lengths, dict.fromkeys(request.sources, 8))
            sizes = {peer: int(length.view(np.int64)[0]) for peer, length in told.items()}
            for peer, size in sizes.items():
                if not 0 <= size < 2**32:
                    raise PeerError(
                        f"in round {request.name} rank {self._ranks[peer]} announced {size} "
                        "bytes; the ranks do not run the same program"
                    )
        return self._swap(request.name, request.messages, {k: v or 0 for k, v in sizes.items()})

    def _swap(
        self, name: str, messages: Mapping[int, ByteArray], sizes: Mapping[int, int]
    ) -> dict[int, ByteArray]:
        """Send these bytes, and receive so many of each peer."""
        # Gloo does not send empty messages; both ends know of them.
        received = {peer: torch.empty(size, dtype=torch.uint8) for peer, size in sizes.items()}
        pending: list[tuple[int, Any]] = []
        try:
            for peer, buffer in received.items():
                if len(buffer):
                    rank = self._ranks[peer]
                    pending.append((rank, dist.irecv(buffer, rank, self._group)))
            for peer, data in messages.items():
                if data.nbytes:
                    # The bytes are the round's own, and stay as they are until it ends.
                    sent = torch.from_numpy(np.require(data, requirements="W"))
                    rank = self._ranks[peer]
                    pending.append((rank, dist.isend(sent, rank, self._group)))
        except RuntimeError as error:
            peers = ", ".join(str(self._ranks[peer]) for peer in sorted({*sizes, *messages}))
            raise lost(f"round {name}", f"one of ranks {peers}", error) from error
        wait_for(f"round {name}", pending, self._timeout, self._retries)
        return {peer: buffer.numpy() for peer, buffer in received.items()}


def wait_for(where: str, pending: Sequence[tuple[int, Any]], timeout: float, retries: int) -> None:
    """Wait for all, each of which is with a rank, with a warning whenever the time is out.

    Gloo closes all connections when one of its own waits ends early: it must have the whole
    limit, and so waits on another thread while this one counts.

    Raises:
        PeerError: see `Transport.run`.
    """
    if not pending:
        return
    limit = check_times(timeout, retries)
    current = pending[0][0]
    failure: Exception | None = None
    done = threading.Event()

    def wait() -> None:
        nonlocal current, failure
        for rank, work in pending:
            current = rank
            try:
                work.wait(limit)
            except Exception as error:  # of several types, by version
                failure = error
                break
        done.set()

    threading.Thread(target=wait, name="gossip wait", daemon=True).start()
    patiently(done.wait, where, lambda: f"rank {current}", timeout, retries)
    if failure is not None:
        raise lost(where, f"rank {current}", failure) from failure


def patiently(
    wait: Callable[[float], bool],
    where: str,
    whom: Callable[[], str],
    timeout: float,
    retries: int,
) -> None:
    """Wait as often as there are retries, and once before them.

    Args:
        wait: so many seconds; returns whether what was waited for is there.
        where, whom: for messages: in what, and for whom.

    Raises:
        PeerError: it is not there in the end.
    """
    for attempt in range(retries + 1):
        if wait(timeout):
            return
        if attempt < retries:
            warnings.warn(
                f"{where}: {whom()} has not answered for {(attempt + 1) * timeout:g} s; "
                f"waiting on, {retries - attempt} more time(s)",
                RuntimeWarning,
                stacklevel=3,
            )
    raise PeerError(
        f"{where}: {whom()} has not answered for {timeout * (retries + 1):g} s ({retries} "
        "retries): it is stuck or dead. Start the job again from a checkpoint, or give "
        "GossipDataParallel a longer timeout"
    )


def lost(where: str, whom: str, error: Exception) -> PeerError:
    """The error that says so; ``whom`` is "rank 3", or several."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return PeerError(
        f"{where}: the connection to {whom} failed, so it has died or has given up "
        f"({reason}). Start the job again from a checkpoint"
    )


@contextmanager
def naming_the_lost(where: str, whom: str = "another rank") -> Iterator[None]:
    """What fails inside of it for want of another rank is a PeerError, which says where."""
    try:
        yield
    except PeerError:
        raise
    except RuntimeError as error:
        raise lost(where, whom, error) from error
