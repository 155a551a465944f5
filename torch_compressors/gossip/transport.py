"""Gossip rounds over torch.distributed: bytes between two ranks, with a bound on every wait."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch.distributed as dist

from gradcomp.adapter_api import ByteArray, Exchange, GossipRound
from gradcomp.errors import GradcompError, PeerError, ProtocolError
from torch_compressors.gossip.groups import GossipGroups
from torch_compressors.gossip.tagged import buffer_for, opened, tagged

__all__ = ["Transport", "check_times", "lost", "naming_the_lost", "patiently", "wait_for"]


def check_times(timeout: float, retries: int) -> timedelta:
    """The longest total wait: ``timeout`` seconds, and again for each retry.

    Raises:
        GradcompError: ``timeout`` is not above 0, or ``retries`` is negative.
    """
    if not timeout > 0:
        raise GradcompError(f"timeout is {timeout}; it must be above 0 seconds")
    if retries < 0:
        raise GradcompError(f"retries is {retries}; it must be at least 0")
    return timedelta(seconds=timeout * (retries + 1))


class Transport:
    """Sends and receives over a Gloo process group that no other uses meanwhile; every rank must create one.

    Args:
        ranks: the gossiping ranks, indexed by the rank numbers of topologies; by default all.
        timeout: seconds above 0 after which a warning names a slow peer, and the wait goes on.
        retries: number of further waits; after them `PeerError` is raised.
    """

    def __init__(
        self, ranks: Sequence[int] | None = None, *, timeout: float = 30.0, retries: int = 2
    ) -> None:
        self._limit = check_times(timeout, retries)
        self._timeout = timeout
        self._retries = retries
        self._ranks = range(dist.get_world_size()) if ranks is None else ranks
        self._groups = GossipGroups([self._ranks], self._limit)

    def close(self) -> None:
        """Give the process group to a later one; no round may follow."""
        self._groups.close()

    def run(self, round_: GossipRound) -> None:
        """Run a round to its end.

        Raises:
            PeerError: a peer has died, or has not answered in ``timeout`` seconds and again after
                each retry. The transport is then unusable.
            ProtocolError: a peer sent a message of a false size, or of another exchange.
        """
        reply: Mapping[int, ByteArray] | None = None
        with self._groups.request() as group:
            while True:
                try:
                    request = next(round_) if reply is None else round_.send(reply)
                except StopIteration:
                    return
                reply = self._exchange(request, group)

    def _exchange(self, request: Exchange, group: dist.ProcessGroup) -> dict[int, ByteArray]:
        name = f"round {request.name}"
        sizes = dict.fromkeys(request.sources, request.nbytes)
        if request.varies:
            lengths = {
                peer: np.array([data.nbytes], np.int64).view(np.uint8)
                for peer, data in request.messages.items()
            }
            received = self._swap(
                f"{name}, sizes", lengths, dict.fromkeys(request.sources, 8), group
            )
            sizes = {peer: int(length.view(np.int64)[0]) for peer, length in received.items()}
            for peer, size in sizes.items():
                if not 0 <= size <= request.nbytes:
                    raise ProtocolError(
                        f"{name}: rank {self._ranks[peer]} announced a message of {size} bytes; it "
                        f"must be in [0, {request.nbytes}]: see whether all ranks run the same "
                        "script and versions"
                    )
        return self._swap(name, request.messages, sizes, group)

    def _swap(
        self,
        name: str,
        messages: Mapping[int, ByteArray],
        sizes: Mapping[int, int],
        group: dist.ProcessGroup,
    ) -> dict[int, ByteArray]:
        """Send ``messages`` by peer, and receive ``sizes`` bytes by peer."""
        # Both ends know the sizes, so empty messages need not travel.
        received = {peer: buffer_for(size) for peer, size in sizes.items() if size}
        # Peers usually get the same array.
        sent = {id(data): tagged(data, name) for data in messages.values() if data.nbytes}
        pending: list[tuple[int, Any]] = []
        try:
            for peer, buffer in received.items():
                rank = self._ranks[peer]
                pending.append((rank, dist.irecv(buffer, rank, group)))
            for peer, data in messages.items():
                if data.nbytes:
                    rank = self._ranks[peer]
                    pending.append((rank, dist.isend(sent[id(data)], rank, group)))
        except RuntimeError as error:
            peers = ", ".join(str(self._ranks[peer]) for peer in sorted({*sizes, *messages}))
            raise lost(name, f"one of ranks {peers}", error) from error
        wait_for(name, pending, self._timeout, self._retries)
        empty: dict[int, ByteArray] = {peer: np.empty(0, np.uint8) for peer in sizes}
        return empty | {
            peer: opened(buffer, name, self._ranks[peer]) for peer, buffer in received.items()
        }


def wait_for(where: str, pending: Sequence[tuple[int, Any]], timeout: float, retries: int) -> None:
    """Wait for all ``pending`` (rank, work), with a warning after each ``timeout`` seconds.

    Gloo closes all connections when one of its waits times out. So Gloo waits for the whole
    limit on another thread, while this one watches the time.

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
    """Wait once and for each retry, with warnings in between.

    Args:
        wait: waits for at most the given seconds; returns whether the wait is over.
        where, whom: the action and the awaited peer, for messages.

    Raises:
        PeerError: the wait is not over after all retries.
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
        "retries): it is stuck or dead, or has made fewer steps. Start the job again from a "
        "checkpoint, or give GossipDataParallel a longer timeout; a rank without data calls "
        "optimizer.step() without gradients as often as the others"
    )


def lost(where: str, whom: str, error: Exception) -> PeerError:
    """The error about a failed connection; ``whom`` is a text such as "rank 3"."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return PeerError(
        f"{where}: the connection to {whom} failed, so it has died or has given up "
        f"({reason}). Start the job again from a checkpoint"
    )


@contextmanager
def naming_the_lost(where: str, whom: str = "another rank") -> Iterator[None]:
    """A context that turns RuntimeError, such as that of a lost connection, into PeerError.

    Errors of gradcomp name their cause already.
    """
    try:
        yield
    except GradcompError:
        raise
    except RuntimeError as error:
        raise lost(where, whom, error) from error
