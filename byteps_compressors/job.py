"""A BytePS job: its processes, on one or several machines, from their start to their end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from byteps_compressors.hosts import Host
from byteps_compressors.process import LAUNCHED
from byteps_compressors.supervise import BY_SIGNAL, GRACE_SECONDS, Order

__all__ = ["SSH_OPTIONS", "STOPPED_TIMEOUT", "Job", "JobError", "Network"]

SERVER = "byteps_compressors.server"
SUPERVISOR = "byteps_compressors.supervise"

POLL_SECONDS = 0.05
FAREWELL_SECONDS = 25.0
"""Grace period in seconds: servers and the scheduler may end this much before or after workers."""

CAUSE_SECONDS = 2.0
"""Grace period in seconds: victims may be noticed before the process that caused the failure."""

STOPPED_TIMEOUT = 60.0
"""Default of --stopped-timeout."""

SSH_SECONDS = 2.0
"""Time that ssh needs to close a connection."""

# ssh gives up a machine that does not answer for 15 s (3 x 5).
SSH_OPTIONS = [
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
]

PASSED_PREFIXES = ("BYTEPS_", "DMLC_", "GRADCOMP_", "OMP_", "PS_")
PASSED_NAMES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Environment variables passed to other machines, besides those with PASSED_PREFIXES."""

EXIT_TIMEOUT = 124
EXIT_SSH = 255

LAST_LINES = 15


@dataclass
class Role:
    """A process of the job.

    Attributes:
        name: name in messages, such as "worker 0".
        machine: host name; empty for this machine.
        process: its supervisor, or the ssh client that started the supervisor.
        log: file with its output.
    """

    name: str
    machine: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def is_worker(self) -> bool:
        """Whether the process runs the user's command."""
        return self.name.startswith("worker")

    @property
    def killed_by(self) -> int:
        """Number of the signal that ended the process; 0 or less if none did."""
        code = self.process.returncode
        return -code if code < 0 else code - BY_SIGNAL

    @property
    def aborted(self) -> bool:
        """Whether the process aborted, as after a failed check in C++."""
        return self.killed_by == signal.SIGABRT

    def end(self) -> str:
        """Describe how the process ended."""
        code = self.process.returncode
        at = f" on {self.machine}" if self.machine else ""
        if self.machine and code == EXIT_SSH:
            return f"lost the ssh connection to {self.machine}, or never had one"
        if self.killed_by == signal.SIGSTOP:
            return f"was stopped by a signal (SIGSTOP){at} for longer than --stopped-timeout"
        if self.killed_by > 0:
            with suppress(ValueError):
                name = signal.Signals(self.killed_by).name
                return f"was killed by signal {self.killed_by} ({name}){at}"
        return f"ended with exit code {code}{at}"

    def last_words(self) -> str:
        """Return the last lines of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-LAST_LINES:])


class JobError(Exception):
    """The job failed; the message is for the user."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Network:
    """Network settings with which the processes find each other.

    Attributes:
        interface: network interface of all processes, such as ``eth0``.
        scheduler: name or address of the scheduler's machine.
        port: a free port on the scheduler's machine.
    """

    interface: str
    scheduler: str
    port: int


class Job:
    """A cluster of processes.

    Args:
        command: command of each worker.
        places: process names and their hosts, as from `spread`.
        network: network settings of all processes.
        logs: folder for the log files.
        passed: names of further environment variables that are passed to other machines.
        timeout: time limit of the job in seconds; None for no limit.
        stopped_timeout: seconds that a process may be stopped (SIGSTOP) before the job ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        places: Sequence[tuple[str, Host]],
        network: Network,
        logs: Path,
        passed: Sequence[str] = (),
        timeout: float | None = None,
        stopped_timeout: float = STOPPED_TIMEOUT,
    ) -> None:
        self._command = list(command)
        self._places = places
        self._network = network
        self._logs = logs
        self._passed = passed
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._stopped_timeout = stopped_timeout
        self._roles: list[Role] = []
        self._ended: dict[
            str, float
        ] = {}  # by name: when a server or the scheduler was seen to have ended

    def run(self) -> None:
        """Run the job to its end.

        Raises:
            JobError: the job failed. All its processes have ended by then.
        """
        try:
            self._start()
            self._watch()
        finally:
            self._clean_up()

    def _start(self) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        kinds = Counter(name.split()[0] for name, _ in self._places)
        workers_at = Counter(host for name, host in self._places if name.startswith("worker"))
        is_local = {host: host.is_local() for _, host in self._places}
        common = {
            "DMLC_NUM_WORKER": str(kinds["worker"]),
            "DMLC_NUM_SERVER": str(kinds["server"]),
            "DMLC_PS_ROOT_URI": self._network.scheduler,
            "DMLC_PS_ROOT_PORT": str(self._network.port),
            "DMLC_INTERFACE": self._network.interface,
        }
        for name, host in self._places:
            kind, _, number = name.partition(" ")
            environment = {**common, "DMLC_ROLE": kind}
            if kind == "worker":
                environment |= {
                    "DMLC_WORKER_ID": number,
                    "BYTEPS_LOCAL_RANK": "0",
                    "BYTEPS_LOCAL_SIZE": "1",
                    LAUNCHED: "1",
                }
            order = Order(
                self._command if kind == "worker" else [sys.executable, "-m", SERVER],
                environment if is_local[host] else {**self._environment(), **environment},
                os.getcwd(),
                workers_at[host],
                kind == "worker",
                self._stopped_timeout,
            )
            self._start_role(name, host, is_local[host], order)

    def _environment(self) -> dict[str, str]:
        """Return the environment variables to pass to other machines."""
        return {
            name: value
            for name, value in os.environ.items()
            if name.startswith(PASSED_PREFIXES) or name in (*PASSED_NAMES, *self._passed)
        }

    def _start_role(self, name: str, host: Host, is_local: bool, order: Order) -> None:
        supervisor = [sys.executable, "-m", SUPERVISOR]
        if not is_local:
            # The remote shell splits this into words again.
            remote = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(supervisor)}"
            supervisor = ["ssh", *SSH_OPTIONS, "--", host.name, remote]
        log = self._logs / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                supervisor,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._roles.append(Role(name, "" if is_local else host.name, process, log))
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # the supervisor has ended, and its log gives the reason
            process.stdin.write(order.to_line())
            process.stdin.flush()

    def _watch(self) -> None:
        workers = [role for role in self._roles if role.is_worker]
        with workers[0].log.open("rb") as shown:
            while True:
                ended = self._which_ended()
                _show(shown)
                self._check(ended)
                if all(role in ended for role in workers):
                    break
                time.sleep(POLL_SECONDS)
        self._say_farewell()

    def _which_ended(self) -> list[Role]:
        return [role for role in self._roles if role.process.poll() is not None]

    def _check(self, ended: Sequence[Role]) -> None:
        """Raise JobError if a process failed, a server left early, or the time limit passed."""
        if any(role.process.returncode != 0 for role in ended):
            ended = self._with_the_cause(ended)
        working = [role.name for role in self._roles if role not in ended and role.is_worker]
        for role in ended:
            code = role.process.returncode
            if code != 0 or (not role.is_worker and working and self._too_early(role)):
                while_ = f" while {', '.join(working)} still ran" if working else ""
                raise JobError(
                    f"{role.name} {role.end()}{while_}, so the job was ended. The end of its log, "
                    f"{role.log}:\n{role.last_words()}",
                    code if role.is_worker and 0 < code < BY_SIGNAL else 1,
                )
        if self._deadline is not None and working and time.monotonic() > self._deadline:
            raise JobError(
                f"{', '.join(working)} still ran after {self._timeout:g} s (--timeout), so the job "
                f"was ended; the logs are in {self._logs}",
                EXIT_TIMEOUT,
            )

    def _with_the_cause(self, ended: Sequence[Role]) -> Sequence[Role]:
        """Return the ended processes, the cause of the failure first.

        BytePS' network layer aborts a process that has lost its peer. On a busy machine this abort
        may be noticed before the end of the peer. An abort may thus be a consequence; any other
        failure counts as the cause.
        """
        deadline = time.monotonic() + CAUSE_SECONDS
        while time.monotonic() < deadline and all(
            role.process.returncode == 0 or role.aborted for role in ended
        ):
            time.sleep(POLL_SECONDS)
            ended = self._which_ended()
        return sorted(ended, key=lambda role: role.aborted)

    def _too_early(self, role: Role) -> bool:
        """Whether a server or the scheduler ended more than FAREWELL_SECONDS before the workers."""
        since = self._ended.setdefault(role.name, time.monotonic())
        return time.monotonic() > since + FAREWELL_SECONDS

    def _say_farewell(self) -> None:
        """Wait for servers and scheduler, which end when all workers have shut BytePS down."""
        deadline = time.monotonic() + FAREWELL_SECONDS
        for role in self._roles:
            with suppress(subprocess.TimeoutExpired):
                role.process.wait(max(0.0, deadline - time.monotonic()))
        # A timeout is not a failure: they wait forever for a worker that never initialized BytePS or
        # ended without shutting it down, and the workers' results are complete.

    def _clean_up(self) -> None:
        for role in self._roles:
            if role.process.stdin is not None:
                with suppress(BrokenPipeError):
                    role.process.stdin.close()
        deadline = time.monotonic() + 2 * GRACE_SECONDS + SSH_SECONDS
        for role in self._roles:
            try:
                role.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                role.process.kill()
                role.process.wait()


def _show(log: IO[bytes]) -> None:
    new = log.read()
    if new:
        sys.stdout.buffer.write(new)
        sys.stdout.flush()
