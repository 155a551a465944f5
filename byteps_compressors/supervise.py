"""Runs one process of a job on its machine, and ends it with the job.

  python -m byteps_compressors.supervise < ORDER

is what byteps_compressors.launch starts for every process, here or through ssh. The order is a line
of JSON, see :class:`Order`. After it standard input stays open for as long as the job wants the
process: where it ends, the process is ended, with all that it has started. So nothing outlives a
launcher, or a connection, that is no more.

The exit code is that of the process; 128 + N where signal N has ended it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

__all__ = ["BY_SIGNAL", "GRACE_SECONDS", "Order", "main"]

POLL_SECONDS = 0.05
GRACE_SECONDS = 3.0
"""Between asking a process to end and ending it."""

BY_SIGNAL = 128
"""Base of the exit code of a process that a signal has ended."""

EXIT_NOT_STARTED = 127

# BytePS' threads wait by sleeping a microsecond at a time. Timers that may be late by so much let
# the processor rest; workers that wait take half the time of it, and messages are no later.
TIMER_SLACK_NANOSECONDS = 200_000
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Order:
    """A process to run.

    Attributes:
        command: the program and its arguments.
        environment: variables besides those of this process, which they win over.
        folder: where to run it.
        workers: number of workers on this machine, which share its processors.
        is_worker: whether it needs a folder for sockets, and a name in /dev/shm, of its own.
    """

    command: list[str]
    environment: dict[str, str]
    folder: str
    workers: int
    is_worker: bool

    def to_line(self) -> bytes:
        """As standard input has it."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, descriptor: int) -> Order:
        """The order in the next line; nothing after it is read."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(descriptor, 1)
            if not byte:
                raise EOFError("standard input ended before the order")
            line += byte
        return cls(**json.loads(line))


class _Ended(BaseException):
    """The job wants the process no longer."""


def main() -> int:
    """Run the order in standard input; returns the exit code."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _Ended

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    order = Order.read(sys.stdin.fileno())
    work = Path(tempfile.mkdtemp(prefix="gradcomp-byteps-"))
    tag = f"{work.name}-"
    try:
        return _run(order, work, tag)
    finally:
        for path in Path("/dev/shm").glob(f"*{tag}*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(work, ignore_errors=True)


def _run(order: Order, work: Path, tag: str) -> int:
    environment = {
        # Workers that do as if they had all processors to themselves wait for each other.
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // max(1, order.workers))),
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        **order.environment,
    }
    environment.pop("PORT", None)  # every server would take it as its own
    if order.is_worker:
        environment |= {"BYTEPS_SOCKET_PATH": str(work), "BYTEPS_SHM_TAG": tag}
    try:
        process = subprocess.Popen(
            order.command,
            cwd=order.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_prepare,
        )
    except OSError as error:
        print(f"cannot run {order.command[0]} in {order.folder}: {error}", file=sys.stderr)
        return EXIT_NOT_STARTED
    try:
        _wait(process)
    except _Ended:
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _end_group(process)
    return process.returncode if process.returncode >= 0 else BY_SIGNAL - process.returncode


def _prepare() -> None:
    """In the new process, before its program starts."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should this process be killed
    _libc.prctl(_PR_SET_TIMERSLACK, TIMER_SLACK_NANOSECONDS)


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Until the process ends, or standard input."""
    stdin = sys.stdin.fileno()
    while process.poll() is None:
        readable, _, _ = select.select([stdin], [], [], POLL_SECONDS)
        if readable and not os.read(stdin, 1024):
            return


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and its children, which are in its group and may outlive it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and _lives(process):
            time.sleep(POLL_SECONDS)


def _lives(process: subprocess.Popen[bytes]) -> bool:
    """Whether anything of its group runs."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
