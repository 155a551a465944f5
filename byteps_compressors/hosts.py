"""The machines of a job, and which processes run where."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradcomp.errors import ConfigError

__all__ = ["HERE", "Host", "is_loopback", "read_hostfile", "spread"]


@dataclass(frozen=True)
class Host:
    """A machine.

    Attributes:
        name: a host name or an address, for ssh and for the other machines.
        slots: largest number of workers there.
    """

    name: str
    slots: int

    def is_here(self) -> bool:
        """Whether it is this machine: only that can bind to its own address."""
        if self.name == socket.gethostname():
            return True
        try:
            with socket.socket() as probe:
                probe.bind((self.name, 0))
        except OSError:
            return False
        return True


HERE = "127.0.0.1"

_LINE = re.compile(r"(?P<name>\S+)(?:\s+slots=(?P<slots>\d+))?")


def is_loopback(name: str) -> bool:
    """Whether other machines take the name for themselves."""
    return name == "localhost" or name.startswith("127.")


def read_hostfile(path: Path) -> list[Host]:
    """The machines in a file with a line for each, ``NAME`` or ``NAME slots=N``.

    N is how many workers it takes, 1 without; 0 for one with servers alone. Empty lines count for
    nothing, nor does what comes
    after a ``#``.

    Raises:
        ConfigError: the file cannot be read, has no machine, names one twice, or a line is none.
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
            raise ConfigError(f"{path}, line {number}: got {text!r}; expected NAME or NAME slots=N")
        name = found["name"]
        if name in hosts:
            raise ConfigError(
                f"{path}, line {number}: {name} stands there twice; give it one line, with slots=N"
            )
        hosts[name] = Host(name, int(found["slots"] or 1))
    if not any(host.slots for host in hosts.values()):
        raise ConfigError(
            f"{path} has no machine for a worker; it needs a line NAME or NAME slots=N, N >= 1, "
            "for each"
        )
    return list(hosts.values())


def spread(hosts: Sequence[Host], workers: int | None, servers: int) -> list[tuple[str, Host]]:
    """Where each process runs, by name: the scheduler, servers, workers.

    The scheduler is on the first machine. Servers go round the machines; workers fill the slots in
    order.

    Args:
        workers: number of workers; None for one in each slot.

    Raises:
        ConfigError: there are more workers than slots.
    """
    slots = [host for host in hosts for _ in range(host.slots)]
    if workers is None:
        workers = len(slots)
    if workers > len(slots):
        raise ConfigError(
            f"--workers is {workers}, but the hostfile has {len(slots)} slots; give machines more "
            "slots, or take fewer workers"
        )
    return [
        ("scheduler", hosts[0]),
        *((f"server {i}", hosts[i % len(hosts)]) for i in range(servers)),
        *((f"worker {i}", slots[i]) for i in range(workers)),
    ]
