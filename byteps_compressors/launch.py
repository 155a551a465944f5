"""Start a BytePS cluster on this machine and run a training script in its workers.

  python -m byteps_compressors.launch --workers 2 --servers 1 -- python train.py ...

A scheduler, the servers and the workers are processes of their own. Each writes to a file in
--logs; what worker 0 writes is shown here, too. When a process dies, the job ends with a message
that names it. Nothing is left behind: no process, no shared memory.

The exit code is 0 when all workers have ended with 0; that of the worker that failed first; 1 when
a server or the scheduler died; 124 when --timeout passed; 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from byteps_compressors.build import byteps_folder, plugin
from byteps_compressors.process import LAUNCHED
from gradcomp.errors import GradcompError

__all__ = ["Job", "main"]

POLL_SECONDS = 0.05
GRACE_SECONDS = 3.0
"""Between asking a process to end and ending it."""

FAREWELL_SECONDS = 25.0
"""How much earlier or later than the workers servers and the scheduler may end."""

EXIT_ARGUMENTS = 2
EXIT_TIMEOUT = 124

LAST_LINES = 15

# BytePS' threads wait by sleeping a microsecond at a time. Timers that may be late by so much let
# the processor rest; workers that wait take half the time of it, and messages are no later.
TIMER_SLACK_NANOSECONDS = 200_000
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_libc = ctypes.CDLL(None)


@dataclass
class Role:
    """A process of the job.

    Attributes:
        name: what messages call it, such as "worker 0".
        log: what it writes goes there.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def is_worker(self) -> bool:
        """Whether it runs the user's command."""
        return self.name.startswith("worker")

    def end(self) -> str:
        """How it has ended, in words."""
        code = self.process.returncode
        if code < 0:
            return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"ended with exit code {code}"

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-LAST_LINES:])


class JobError(Exception):
    """The job has failed; the text is for the user."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Job:
    """A cluster on this machine.

    Args:
        command: what each worker runs.
        workers, servers: how many processes; at least 1 each.
        logs: folder for the log files.
        timeout: seconds that the job may take; None is forever.
    """

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        servers: int,
        logs: Path,
        timeout: float | None = None,
    ) -> None:
        self._command = list(command)
        self._workers = workers
        self._servers = servers
        self._logs = logs
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._roles: list[Role] = []
        self._ended: dict[str, float] = {}  # when it was seen of servers and the scheduler
        self._work = Path(tempfile.mkdtemp(prefix="gradcomp-byteps-"))
        self._tag = f"{self._work.name}-"

    def run(self) -> None:
        """Run the job to its end.

        Raises:
            JobError: it failed. All of its processes have ended by then.
        """
        try:
            self._start()
            self._watch()
        finally:
            self._clean_up()

    def _start(self) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        server = [sys.executable, "-m", "byteps_compressors.server"]
        common = {
            "DMLC_NUM_WORKER": str(self._workers),
            "DMLC_NUM_SERVER": str(self._servers),
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(_free_port()),
            "DMLC_INTERFACE": os.environ.get("DMLC_INTERFACE", "lo"),
        }
        self._start_role("scheduler", server, {**common, "DMLC_ROLE": "scheduler"})
        for i in range(self._servers):
            self._start_role(f"server {i}", server, {**common, "DMLC_ROLE": "server"})
        for i in range(self._workers):
            sockets = self._work / str(i)
            sockets.mkdir()
            environment = {
                **common,
                "DMLC_ROLE": "worker",
                "DMLC_WORKER_ID": str(i),
                "BYTEPS_LOCAL_RANK": "0",
                "BYTEPS_LOCAL_SIZE": "1",
                "BYTEPS_SOCKET_PATH": str(sockets),
                "BYTEPS_SHM_TAG": f"{self._tag}{i}-",
                LAUNCHED: "1",
            }
            self._start_role(f"worker {i}", self._command, environment)

    def _start_role(self, name: str, command: list[str], own: Mapping[str, str]) -> None:
        log = self._logs / f"{name.replace(' ', '-')}.log"
        environment = {
            # Workers that do as if they had all processors to themselves wait for each other.
            "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // self._workers)),
            "PYTHONUNBUFFERED": "1",
            **os.environ,
            **own,
        }
        environment.pop("PORT", None)  # every server would take it as its own
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_prepare,
            )
        self._roles.append(Role(name, process, log))

    def _watch(self) -> None:
        workers = [role for role in self._roles if role.is_worker]
        with workers[0].log.open("rb") as shown:
            while True:
                ended = [role for role in self._roles if role.process.poll() is not None]
                _show(shown)
                self._check(ended)
                if all(role in ended for role in workers):
                    break
                time.sleep(POLL_SECONDS)
        self._say_farewell()

    def _check(self, ended: Sequence[Role]) -> None:
        """Go on, unless a role has failed, or time is up."""
        working = [role.name for role in self._roles if role not in ended and role.is_worker]
        for role in ended:
            code = role.process.returncode
            if code != 0 or (not role.is_worker and working and self._too_early(role)):
                while_ = f" while {', '.join(working)} still ran" if working else ""
                raise JobError(
                    f"{role.name} {role.end()}{while_}, so the job was ended. The end of its log, "
                    f"{role.log}:\n{role.last_words()}",
                    code if role.is_worker and code > 0 else 1,
                )
        if self._deadline is not None and working and time.monotonic() > self._deadline:
            raise JobError(
                f"{', '.join(working)} still ran after {self._timeout:g} s (--timeout), so the job "
                f"was ended; the logs are in {self._logs}",
                EXIT_TIMEOUT,
            )

    def _too_early(self, role: Role) -> bool:
        """Whether a server or the scheduler has left its workers; they may be about to end, too."""
        since = self._ended.setdefault(role.name, time.monotonic())
        return time.monotonic() > since + FAREWELL_SECONDS

    def _say_farewell(self) -> None:
        """Wait for servers and scheduler, which end when all workers have told them to."""
        deadline = time.monotonic() + FAREWELL_SECONDS
        for role in self._roles:
            with suppress(subprocess.TimeoutExpired):
                role.process.wait(max(0.0, deadline - time.monotonic()))
        # A worker that never initialized BytePS, or left without shutting it down, keeps them
        # waiting; what it was started for is done.

    def _clean_up(self) -> None:
        # What a process has started lives in its group, and may outlive it.
        for number, grace in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
            for role in self._roles:
                _signal_group(role, number)
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and any(map(_lives, self._roles)):
                time.sleep(POLL_SECONDS)
        for path in Path("/dev/shm").glob(f"*{self._tag}*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._work, ignore_errors=True)


def _prepare() -> None:
    """In the new process, before its program starts."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should this launcher be killed
    _libc.prctl(_PR_SET_TIMERSLACK, TIMER_SLACK_NANOSECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _signal_group(role: Role, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(role.process.pid, number)


def _lives(role: Role) -> bool:
    """Whether anything of a role's process group runs."""
    role.process.poll()
    try:
        os.killpg(role.process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _show(log: IO[bytes]) -> None:
    new = log.read()
    if new:
        sys.stdout.buffer.write(new)
        sys.stdout.flush()


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; it must be at least 1")
    return number


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m byteps_compressors.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=_count, default=2, metavar="N", help="default: 2")
    parser.add_argument("--servers", type=_count, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--logs",
        type=Path,
        metavar="DIR",
        help="where the log files go (default: byteps-logs)",
        default=Path("byteps-logs"),
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="default: none")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --, what workers run")
    arguments = parser.parse_args(argv)
    arguments.command = arguments.command[arguments.command[:1] == ["--"] :]
    if not arguments.command:
        parser.error("what should the workers run? For example: -- python train.py")
    if shutil.which(arguments.command[0]) is None:
        parser.error(f"there is no program '{arguments.command[0]}'")
    return arguments


class _EndedBySignalError(Exception):
    """The launcher was told to end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job; returns its exit code."""
    arguments = _parse(argv)

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough: cleaning up takes a while
        raise _EndedBySignalError(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        byteps_folder()
        plugin()  # once, here, where an error has somewhere to go
        job = Job(
            arguments.command,
            arguments.workers,
            arguments.servers,
            arguments.logs,
            arguments.timeout,
        )
        job.run()
    except GradcompError as error:
        print(f"launch: {error}", file=sys.stderr)
        return EXIT_ARGUMENTS
    except JobError as error:
        print(f"launch: {error}", file=sys.stderr)
        return error.exit_code
    except _EndedBySignalError as told:
        name = signal.Signals(told.args[0]).name
        print(f"launch: ended by {name}", file=sys.stderr)
        return 128 + int(told.args[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
