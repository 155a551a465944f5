"""Hostfiles, and the placement of a BytePS job's processes on machines."""

from __future__ import annotations

import re
import reprlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradcomp.errors import ConfigError

__all__ = ["LOCALHOST", "Host", "is_loopback", "read_hostfile", "spread"]


@dataclass(frozen=True)
class Host:
    """A machine.

    Attributes:
        name: host name or address, used by ssh and by the other machines.
        slots: maximum number of workers on it.
    """

    name: str
    slots: int

    def is_local(self) -> bool:
        """Whether the host is this machine, tested by binding a socket to its address."""
        if self.name == socket.gethostname():
            return True
        try:
            with socket.socket() as probe:
                probe.bind((self.name, 0))
        except OSError:
            return False
        return True


LOCALHOST = "127.0.0.1"

# A name with a leading "-" would be an option of ssh.
_LINE = re.compile(
    r"(?P<name>(?:[\w.][\w.-]*@)?[\w:\[][\w.:%\[\]-]*)(?:\s+slots=(?P<slots>[0-9]{1,4}))?", re.ASCII
)


def is_loopback(name: str) -> bool:
    """Whether the name is a loopback name, which every machine resolves to itself."""
    return name == "localhost" or name.startswith("127.")


def read_hostfile(path: Path) -> list[Host]:
    """Read a hostfile: one line ``NAME`` or ``NAME slots=N`` per machine.

    NAME is a host name or address. N is the maximum number of workers, 1 by default and 9999 at
    most; a machine with ``slots=0`` runs servers only.
    Empty lines and text after ``#`` are ignored.

    Raises:
        ConfigError: the file cannot be read, has no slot, lists a machine twice, or has a malformed
            line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the hostfile {path}: {error}") from None
    hosts: dict[str, Host] = {}
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"{path}, line {number}: got {reprlib.repr(text)}; expected NAME or NAME slots=N, with "
                "a host name or address and N from 0 to 9999"
            )
        name = found["name"]
        if name in hosts:
            raise ConfigError(
                f"{path}, line {number}: {name} is listed twice; give it one line, with slots=N"
            )
        hosts[name] = Host(name, int(found["slots"] or 1))
    if not any(host.slots for host in hosts.values()):
        raise ConfigError(
            f"{path} has no machine for workers; add a line NAME or NAME slots=N, N >= 1, for each "
            "machine"
        )
    return list(hosts.values())


def spread(hosts: Sequence[Host], workers: int | None, servers: int) -> list[tuple[str, Host]]:
    """Assign the scheduler, servers and workers to machines; returns (process name, host) pairs.

    The scheduler runs on the first machine, servers are placed round-robin, and workers fill the
    slots in order.

    Args:
        hosts: the machines; not empty.
        workers: number of workers; None for one in each slot.
        servers: number of servers.

    Raises:
        ConfigError: there are more workers than slots.
    """
    slots = [host for host in hosts for _ in range(host.slots)]
    if workers is None:
        workers = len(slots)
    if workers > len(slots):
        raise ConfigError(
            f"--workers is {workers}, but the hostfile has {len(slots)} slots; give machines more "
            "slots, or start fewer workers"
        )
    return [
        ("scheduler", hosts[0]),
        *((f"server {i}", hosts[i % len(hosts)]) for i in range(servers)),
        *((f"worker {i}", slots[i]) for i in range(workers)),
    ]
