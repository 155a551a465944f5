"""Gossip rounds over torch.distributed: bytes between two ranks, with a bound on every wait."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gradcomp.arrays import ByteArray
from gradcomp.errors import PeerError
from gradcomp.rounds import Exchange, GossipRound

__all__ = ["Transport"]


class Transport:
    """Sends and receives over a process group of its own, on Gloo; every rank must make one.

    Args:
        timeout: seconds after which a peer counts as slow, above 0. Then a warning names it, and
            the wait goes on.
        retries: how often the wait goes on; after that `PeerError` is raised.
    """

    def __init__(self, *, timeout: float = 30.0, retries: int = 2) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout}; it must be above 0 seconds")
        if retries < 0:
            raise ValueError(f"retries is {retries}; it must be at least 0")
        self._timeout = timeout
        self._retries = retries
        self._limit = timedelta(seconds=timeout * (retries + 1))
        self._group = dist.new_group(backend="gloo", timeout=self._limit)

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
                        f"in round {request.name} rank {peer} announced {size} bytes; the ranks "
                        "do not run the same program"
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
                    pending.append((peer, dist.irecv(buffer, peer, self._group)))
            for peer, data in messages.items():
                if data.nbytes:
                    # The bytes are the round's own, and stay as they are until it ends.
                    sent = torch.from_numpy(np.require(data, requirements="W"))
                    pending.append((peer, dist.isend(sent, peer, self._group)))
        except RuntimeError as error:
            peers = ", ".join(map(str, sorted({*sizes, *messages})))
            raise _dead(name, f"one of {peers}", error) from error
        self._wait(name, pending)
        return {peer: buffer.numpy() for peer, buffer in received.items()}

    def _wait(self, name: str, pending: Sequence[tuple[int, Any]]) -> None:
        """Wait for all, with a warning whenever the time is out.

        Gloo closes all connections when one of its own waits ends early: it must have the whole
        limit, and so waits on another thread while this one counts.
        """
        if not pending:
            return
        current = pending[0][0]
        failure: Exception | None = None
        done = threading.Event()

        def wait() -> None:
            nonlocal current, failure
            for peer, work in pending:
                current = peer
                try:
                    work.wait(self._limit)
                except Exception as error:  # of several types, by version
                    failure = error
                    break
            done.set()

        threading.Thread(target=wait, name="gossip wait", daemon=True).start()
        for attempt in range(self._retries + 1):
            if done.wait(self._timeout):
                break
            if attempt < self._retries:
                warnings.warn(
                    f"round {name}: rank {current} has not answered for "
                    f"{(attempt + 1) * self._timeout:g} s; waiting on, {self._retries - attempt} "
                    "more time(s)",
                    RuntimeWarning,
                    stacklevel=2,
                )
        if failure is not None:
            raise _dead(name, str(current), failure) from failure
        if not done.is_set():
            raise PeerError(
                f"round {name}: rank {current} has not answered for "
                f"{self._limit.total_seconds():g} s ({self._retries} retries): it is stuck or "
                "dead. Start the job again from a checkpoint, or give GossipDataParallel a longer "
                "timeout"
            )


def _dead(name: str, peers: str, error: Exception) -> PeerError:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return PeerError(
        f"round {name}: the connection to rank {peers} failed, so it has died or has given up "
        f"({reason}). Start the job again from a checkpoint"
    )
