"""How much a rank sends: what it hands to the collectives, and what TCP carries."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from training.engines.engine import engine
from training.learners.learner import Learner

__all__ = ["TrafficMeter", "tcp_bytes_sent"]

# In struct tcp_info of linux/tcp.h, whose layout only grows.
_TCPI_BYTES_ACKED = 120
_TCP_INFO_SIZE = 128


class TrafficMeter:
    """Counts the bytes of gradients this rank hands to the collectives, or to its peers."""

    def __init__(self, learner: Learner, sent: int = 0) -> None:
        """Count by what the learner counts, or as the engine sends uncompressed gradients.

        The account holds frame headers, indices and tokens too. ``sent`` is what the run
        had sent before it was resumed.
        """
        self.dense_step_bytes = 4 * learner.numel
        self.sent = sent
        self._learner = learner
        self._seen = learner.sent_bytes or 0

    def end_step(self) -> int:
        """The bytes that the step which has just ended sent."""
        if engine().size() == 1:
            return 0  # the engine's optimizer then calls neither collectives nor compressors
        counted = self._learner.sent_bytes
        if counted is None:
            sent = self.dense_step_bytes
        else:
            sent, self._seen = counted - self._seen, counted
        self.sent += sent
        return sent

    def ratio(self, sent: int, steps: int) -> float | None:
        """Bytes of ``steps`` steps in float32 over the bytes ``sent``; None if none were."""
        return self.dense_step_bytes * steps / sent if sent else None


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
