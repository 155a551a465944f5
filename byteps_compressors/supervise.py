"""Run one process of a BytePS job, and end it together with the job.

  python -m byteps_compressors.supervise < ORDER

byteps_compressors.launch starts this supervisor for every process, locally or through ssh. The
order is one line of JSON (see `Order`). Standard input then stays open while the job runs. When it
closes, the supervisor ends the process and all its children, so nothing outlives the launcher or a
lost ssh connection. It also ends them after a time in which one of them was stopped.

The exit code is that of the process, or 128 + N if signal N ended or stopped it.
"""

from __future__ import annotations

import ctypes
import json
import math
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

from gradcomp.processors import processors

__all__ = ["BY_SIGNAL", "GRACE_SECONDS", "Order", "main"]

POLL_SECONDS = 0.05
STOPPED_POLL_SECONDS = 1.0
GRACE_SECONDS = 3.0
"""Time between SIGTERM and SIGKILL."""

BY_SIGNAL = 128
"""Exit codes above this are this plus the number of the signal that ended the process."""

EXIT_NOT_STARTED = 127

# BytePS' threads wait in sleeps of 1 microsecond. This much timer slack halves the CPU time of
# waiting workers, and messages arrive no later.
TIMER_SLACK_NANOSECONDS = 200_000
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Order:
    """A process to run.

    Attributes:
        command: the program and its arguments.
        environment: variables added to those of the supervisor; on conflict these win.
        folder: working directory.
        workers: number of workers on this machine, which share its processors.
        is_worker: whether the process needs its own folder for sockets and its own tag in
            /dev/shm.
        stopped_seconds: longest time that the process or a child of it may be stopped (SIGSTOP).
    """

    command: list[str]
    environment: dict[str, str]
    folder: str
    workers: int
    is_worker: bool
    stopped_seconds: float

    def to_line(self) -> bytes:
        """Encode the order as the line that `read` expects."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, descriptor: int) -> Order:
        """Read the order from one line, byte by byte: bytes after the line stay unread."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(descriptor, 1)
            if not byte:
                raise EOFError("standard input ended before the order")
            line += byte
        return cls(**json.loads(line))


class _Ended(BaseException):
    """The supervisor received a signal to end the process."""


def main() -> int:
    """Run the order from standard input; returns the exit code."""

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
        # Divide the processors: if every worker uses all of them, workers slow each other down.
        "OMP_NUM_THREADS": str(max(1, processors() // max(1, order.workers))),
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        **order.environment,
    }
    environment.pop("PORT", None)  # all servers would listen at the same port
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
    stopped = False
    try:
        stopped = _wait(process, order.stopped_seconds)
    except _Ended:
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _end_group(process)
    if stopped:
        return BY_SIGNAL + signal.SIGSTOP
    return process.returncode if process.returncode >= 0 else BY_SIGNAL - process.returncode


def _prepare() -> None:
    """Set process attributes in the child, between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # if the supervisor is killed
    _libc.prctl(_PR_SET_TIMERSLACK, TIMER_SLACK_NANOSECONDS)


def _wait(process: subprocess.Popen[bytes], stopped_seconds: float) -> bool:
    """Wait until the process ends, standard input closes, or a process was stopped too long.

    Returns:
        Whether a process was stopped too long.
    """
    stdin = sys.stdin.fileno()
    look = deadline = math.inf
    while process.poll() is None:
        readable, _, _ = select.select([stdin], [], [], POLL_SECONDS)
        if readable and not os.read(stdin, 1024):
            return False
        now = time.monotonic()
        if now < look < math.inf:
            continue
        look = now + STOPPED_POLL_SECONDS
        if not _is_stopped(process.pid):
            deadline = now + stopped_seconds
        elif now > deadline:
            return True
    return False


def _is_stopped(group: int) -> bool:
    """Whether a process of a group is stopped by a signal; a debugger's stop does not count."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name in parentheses may have any characters.
            state, _, own_group = path.read_text().rpartition(")")[2].split()[:3]
            if state == "T" and int(own_group) == group:
                return True
    return False


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and its children; they share its process group and may outlive it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and _lives(process):
            time.sleep(POLL_SECONDS)


def _lives(process: subprocess.Popen[bytes]) -> bool:
    """Whether any process of the group still runs."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
