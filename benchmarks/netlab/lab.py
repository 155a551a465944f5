"""Several hosts on one machine: Linux network namespaces, joined by a bridge, with shaped links.

Each host has a namespace with one interface, ``eth0``, whose other end is at the bridge. Token
buckets (tc tbf) limit both directions of each link to the same rate. All hosts share the
processors, so computation takes longer than on separate machines.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

__all__ = ["INTERFACE", "Lab", "LabError", "bits_per_second"]

INTERFACE = "eth0"
"""Of each host."""

_BRIDGE = "gradcomp-br"
_NETWORK = "10.77.0"
_MOST_HOSTS = 64
_LOCK = Path("/run/lock/gradcomp-netlab")

_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TOLERANCE = 0.15


class LabError(Exception):
    """The lab cannot be set up; the text has the reason and the remedy."""


def bits_per_second(rate: str) -> float:
    """A rate such as ``100mbit`` in numbers.

    Raises:
        LabError: not a rate.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if found is None or not 1e5 <= float(found[1]) * _UNITS[found[2]] <= 1e11:
        raise LabError(
            f"rate {rate!r}: expected a number and kbit, mbit or gbit, between 100kbit and 100gbit"
        )
    return float(found[1]) * _UNITS[found[2]]


class Lab:
    """Hosts 0, 1, ... with links of the same rate.

    A context manager: the hosts exist inside it. Remains of a killed lab are removed first. Only one
    lab at a time can exist on a machine, in the main thread. Inside it SIGTERM ends the program like
    an exception, so that the hosts and their processes end as well.

    Args:
        hosts: number of hosts, 2 to 64.
        rate: rate of each link, in each direction, such as ``100mbit``; None: unlimited.

    Raises:
        LabError: from here, or on entry: an argument is out of range, this is not root, a program
            is missing, another lab is up.
    """

    def __init__(self, hosts: int, rate: str | None = None) -> None:
        if not 2 <= hosts <= _MOST_HOSTS:
            raise LabError(f"hosts is {hosts}; it must be between 2 and {_MOST_HOSTS}")
        if rate is not None:
            bits_per_second(rate)
        self.hosts = hosts
        self.rate = rate
        self._lock: IO[str] | None = None
        self._on_term: Any = None

    @staticmethod
    def unavailable() -> str:
        """Why no lab is possible on this machine; empty if it is."""
        missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
        if missing:
            return f"there is no {' and no '.join(missing)}: install Debian's iproute2"
        if os.geteuid() != 0:
            return "network namespaces need root: run this as root"
        probe = "gradcomp-probe"  # containers may have root without namespaces
        _quietly(["ip", "netns", "del", probe])
        try:
            _run(["ip", "netns", "add", probe])
        except LabError as error:
            return str(error)
        _quietly(["ip", "netns", "del", probe])
        return ""

    def __enter__(self) -> Lab:
        if reason := self.unavailable():
            raise LabError(reason)
        self._lock = _LOCK.open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise LabError("another lab is up; wait for it, or end it") from None
        self._on_term = signal.signal(signal.SIGTERM, _end)
        try:
            self._remove()
            self._make()
            self.shape(self.rate)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()
        signal.signal(signal.SIGTERM, self._on_term)
        if self._lock is not None:
            self._lock.close()

    def address(self, host: int) -> str:
        """Of a host."""
        return f"{_NETWORK}.{10 + host}"

    @property
    def network(self) -> str:
        """That all hosts are in."""
        return f"{_NETWORK}.0/24"

    @property
    def gateway(self) -> str:
        """The address of this machine, which all hosts reach."""
        return f"{_NETWORK}.1"

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """The command prefix that runs a command on a host."""
        return ["ip", "netns", "exec", _namespace(host), *command]

    def shape(self, rate: str | None) -> None:
        """Limit all links to another rate; None: not at all."""
        for host in range(self.hosts):
            for where in (["ip", "netns", "exec", _namespace(host)], []):
                device = INTERFACE if where else _link(host)
                _quietly([*where, "tc", "qdisc", "del", "dev", device, "root"])
                if rate is not None:
                    # At high rates timers come too rarely for small buckets. At low ones a bucket
                    # holds the largest packet before it is cut, 64 KiB and headers, for which
                    # real links have network cards.
                    burst = max(128 << 10, int(bits_per_second(rate) / 8 * 1e-3))
                    shaper = ["tbf", "rate", rate, "burst", f"{burst}b", "latency", "50ms"]
                    _run([*where, "tc", "qdisc", "add", "dev", device, "root", *shaper])
        self.rate = rate

    def measure(self) -> float:
        """Bits per second that a TCP connection from host 0 to host 1 carries.

        Below the rate if the processors cannot keep up.

        Raises:
            LabError: more than the rate, so the links are not shaped.
        """
        expected = None if self.rate is None else bits_per_second(self.rate)
        nbytes = int(min((expected or 1e10) / 8, 256e6))
        script = str(Path(__file__).with_name("transfer.py"))
        receive = [sys.executable, script, "receive", self.address(1), str(nbytes)]
        with subprocess.Popen(
            self.command(1, receive), stdout=subprocess.PIPE, text=True
        ) as receiver:
            assert receiver.stdout is not None
            port = receiver.stdout.readline().strip()
            _run(self.command(0, [sys.executable, script, "send", self.address(1), port]))
            found = float(receiver.stdout.readline())
        if expected is not None and found > (1 + _TOLERANCE) * expected:
            raise LabError(f"links of {self.rate} carry {found / 1e6:.1f} Mbit/s: tc does not work")
        return found

    def _make(self) -> None:
        _run(["ip", "link", "add", _BRIDGE, "type", "bridge"])
        _run(["ip", "address", "add", f"{self.gateway}/24", "dev", _BRIDGE])
        _run(["ip", "link", "set", _BRIDGE, "up"])
        for host in range(self.hosts):
            name, link = _namespace(host), _link(host)
            _run(["ip", "netns", "add", name])
            pair = ["type", "veth", "peer", "name", link]
            _run(["ip", "link", "add", INTERFACE, "netns", name, *pair])
            _run(["ip", "link", "set", link, "master", _BRIDGE, "up"])
            inside = ["ip", "-n", name]
            _run([*inside, "address", "add", f"{self.address(host)}/24", "dev", INTERFACE])
            _run([*inside, "link", "set", INTERFACE, "up"])
            _run([*inside, "link", "set", "lo", "up"])

    def _remove(self) -> None:
        for host in range(_MOST_HOSTS):
            if Path("/run/netns", _namespace(host)).exists():
                _quietly(["ip", "netns", "del", _namespace(host)])
            if Path("/sys/class/net", _link(host)).exists():
                _quietly(["ip", "link", "del", _link(host)])
        _quietly(["ip", "link", "del", _BRIDGE])


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _namespace(host: int) -> str:
    return f"gradcomp{host}"


def _link(host: int) -> str:
    """The bridge's end of a host's link."""
    return f"gradcomp-{host}"


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def _quietly(command: Sequence[str]) -> None:
    subprocess.run(command, capture_output=True, check=False)
