"""Rendezvous of processes that come and go: who takes part in the next exchange, and whether it counts.

All agreements are keys of one store of torch.distributed, each decided by one atomic write. The
store must outlive the processes: hold it in one that does not train, or in torchrun's agent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gradcomp.errors import PeerError

__all__ = ["FRESH", "Arrival", "Members", "Rendezvous"]

FRESH = -1
"""Version of a process that has no parameters of the job yet."""

_PAUSE = 0.02  # seconds between two looks into the store


@dataclass(frozen=True)
class Arrival:
    """A process at a rendezvous.

    Attributes:
        name: unique in the job, and the same after a restart.
        version: number of exchanges behind its parameters, or `FRESH`.
        text: its configuration and model, equal on all processes.
    """

    name: str
    version: int
    text: str


@dataclass(frozen=True)
class Members:
    """The members of one exchange, by name."""

    number: int
    arrivals: tuple[Arrival, ...]

    def rank(self, name: str) -> int:
        """The rank of a member."""
        return [arrival.name for arrival in self.arrivals].index(name)

    @property
    def source(self) -> int:
        """The rank of the first member of the newest version."""
        versions = [arrival.version for arrival in self.arrivals]
        return versions.index(max(versions))


class Rendezvous:
    """Rendezvous under one prefix of a store.

    A rendezvous begins when all members of the last one have arrived, or ``grace`` seconds after there
    are ``quorum`` arrivals. A process that comes later joins the next one.

    Args:
        store: of torch.distributed, such as a TCPStore.
        name: of this process.
        quorum: least number of members, at least 1.
        grace: wait for further members, in seconds.
        join_timeout: longest wait for a rendezvous, in seconds.
        timeout: longest wait for the end of an exchange, in seconds.
    """

    def __init__(
        self, store: Any, name: str, quorum: int, grace: float, join_timeout: float, timeout: float
    ) -> None:
        self._store = store
        self._name = name
        self._quorum = quorum
        self._grace = grace
        self._join_timeout = join_timeout
        self._timeout = timeout
        self._last: frozenset[str] = frozenset()
        store.compare_set("rendezvous", "", "0")

    def meet(self, version: int, text: str) -> Members:
        """Wait for the next rendezvous with this process among its members.

        Raises:
            PeerError: no quorum has come in time.
        """
        own_arrival = Arrival(self._name, version, text)
        while True:
            number = int(self._store.get("rendezvous"))
            arrivals = self._attend(number, own_arrival)
            self._store.compare_set("rendezvous", str(number), str(number + 1))
            if own_arrival in arrivals:
                members = Members(number, arrivals)
                self._last = frozenset(arrival.name for arrival in arrivals)
                if members.rank(self._name) == 0:
                    self._forget(number - 2)
                return members

    def settle(self, members: Members, done: bool) -> bool:
        """Whether the exchange of a rendezvous counts: all members have done it.

        Args:
            done: this process has the results.
        """
        key = f"{members.number}/verdict"
        if not done:
            self._store.compare_set(key, "", "abort")
        elif self._store.add(f"{members.number}/done", 1) == len(members.arrivals):
            self._store.set("begun", "")
            self._store.compare_set(key, "", "commit")
        if not self._wait(lambda: self._store.check([key]), self._timeout):
            self._store.compare_set(key, "", "abort")  # a member has left without a verdict
        verdict: bytes = self._store.get(key)
        return verdict == b"commit"

    def _attend(self, number: int, own_arrival: Arrival) -> tuple[Arrival, ...]:
        """Arrive at a rendezvous, and wait until its members are decided."""
        index = self._store.add(f"{number}/arrivals", 1)
        self._store.set(f"{number}/{index}", json.dumps(asdict(own_arrival)))
        key = f"{number}/members"
        complete: list[float] = []  # the times at which the quorum was seen

        def decided() -> bool:
            if self._store.check([key]):
                return True
            arrivals = self._arrivals(number)
            if len(arrivals) >= self._quorum and self._goes_on(arrivals):
                complete.append(time.monotonic())
                everyone = self._last and self._last <= set(arrivals)
                if everyone or complete[-1] - complete[0] >= self._grace:
                    members = [asdict(arrivals[name]) for name in sorted(arrivals)]
                    self._store.compare_set(key, "", json.dumps(members))
            return False

        if not self._wait(decided, self._join_timeout):
            arrivals = self._arrivals(number)
            raise PeerError(
                f"{len(arrivals)} processes, {', '.join(sorted(arrivals))}, have come to exchange {number} "
                f"within {self._join_timeout:g} s; at least {self._quorum} are needed, one of them with "
                "parameters of this job unless the job begins: check the logs of the other processes, give a "
                "longer join_timeout or a smaller quorum, or begin a new job with another store"
            )
        return tuple(Arrival(**member) for member in json.loads(self._store.get(key)))

    def _goes_on(self, arrivals: Mapping[str, Arrival]) -> bool:
        """Whether someone has the parameters of the job, or the job begins now."""
        if any(arrival.version != FRESH for arrival in arrivals.values()):
            return True
        return not self._store.check(["begun"])

    def _arrivals(self, number: int) -> dict[str, Arrival]:
        """The arrivals so far by name; of a process that came twice, the last one."""
        arrivals = {}
        for index in range(1, self._store.add(f"{number}/arrivals", 0) + 1):
            if self._store.check([f"{number}/{index}"]):  # else it is being written
                arrival = Arrival(**json.loads(self._store.get(f"{number}/{index}")))
                arrivals[arrival.name] = arrival
        return arrivals

    def _wait(self, over: Callable[[], bool], timeout: float) -> bool:
        """Look until ``over`` is true; False after the timeout."""
        deadline = time.monotonic() + timeout
        while not over():
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
        return True

    def _forget(self, number: int) -> None:
        """Remove the keys of an old rendezvous."""
        count = self._store.add(f"{number}/arrivals", 0)
        keys = ["arrivals", "members", "done", "verdict", *map(str, range(1, count + 1))]
        for key in keys:
            self._store.delete_key(f"{number}/{key}")
