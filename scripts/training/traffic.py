"""Bytes that a rank sends: handed to collectives or peers, and carried by TCP."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from training.engines.current import engine
from training.learners.base import Learner

__all__ = ["TrafficMeter", "tcp_bytes_sent"]

# In struct tcp_info of linux/tcp.h; its layout only grows.
_TCPI_BYTES_ACKED = 120
_TCP_INFO_SIZE = 128


class TrafficMeter:
    """Counts the bytes of gradients that this rank hands to collectives or to its peers.

    Frame headers, indices and tokens count, too.
    """

    def __init__(self, learner: Learner, sent: int = 0) -> None:
        """Count as the learner does; where it does not count, 4 bytes per parameter and step.

        ``sent``: bytes that the run had sent before it was resumed.
        """
        self.dense_step_bytes = 4 * learner.numel
        self.sent = sent
        self._learner = learner
        self._seen = learner.sent_bytes or 0

    def end_step(self) -> int:
        """Count the step that has just ended; returns its bytes."""
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

    The engine's messages for coordination count; headers of TCP and IP do not. None where the
    system does not tell.
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
            connection.detach()  # its owner closes it
        total += struct.unpack_from("=Q", info, _TCPI_BYTES_ACKED)[0]
    return total
