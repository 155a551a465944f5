"""How much a rank sends: what it hands to the collectives, and what TCP carries."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Protocol

from gradcomp.stats import Stats
from training.engine import engine

__all__ = ["TrafficMeter", "tcp_bytes_sent"]

# In struct tcp_info of linux/tcp.h, whose layout only grows.
_TCPI_BYTES_ACKED = 120
_TCP_INFO_SIZE = 128


class Counter(Protocol):
    """What compresses gradients, and counts."""

    @property
    def stats(self) -> Stats:
        """Its account so far."""


class TrafficMeter:
    """Counts the bytes of gradients this rank hands to the collectives."""

    def __init__(self, numel: int, counter: Counter | None, sent: int = 0) -> None:
        """Count by the compressor's ``stats``, or as the engine sends uncompressed if None.

        ``numel`` is the number of parameters.

        The account holds frame headers, indices and tokens too. ``sent`` is what the run
        had sent before it was resumed.
        """
        self.dense_step_bytes = 4 * numel
        self.sent = sent
        self._counter = counter
        self._seen = self._counted()

    def end_step(self) -> int:
        """The bytes that the step which has just ended sent."""
        if engine().size() == 1:
            return 0  # the engine's optimizer then calls neither collectives nor compressors
        if self._counter is None:
            sent = self.dense_step_bytes
        else:
            counted = self._counted()
            sent, self._seen = counted - self._seen, counted
        self.sent += sent
        return sent

    def ratio(self, sent: int, steps: int) -> float | None:
        """Bytes of ``steps`` steps in float32 over the bytes ``sent``; None if none were."""
        return self.dense_step_bytes * steps / sent if sent else None

    def _counted(self) -> int:
        return self._counter.stats.total_bytes if self._counter is not None else 0


def tcp_bytes_sent() -> int | None:
    """Bytes that this process's open TCP connections have delivered to their peers.

    All that the engine says to coordinate is in it; headers of TCP and IP are not. None
    where the system does not tell.
    """
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        return None
    total = 0
    for descriptor in [int(entry.name) for entry in descriptors.iterdir()]:
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:  # not a socket, or closed meanwhile
            continue
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
        except OSError:  # not TCP
            continue
        finally:
            connection.detach()  # it is another's: leave it open
        total += struct.unpack_from("=Q", info, _TCPI_BYTES_ACKED)[0]
    return total
