"""Start a BytePS cluster and run a training script in its workers.

  python -m byteps_compressors.launch --workers 2 --servers 1 -- python train.py ...
  python -m byteps_compressors.launch --hostfile hosts --interface eth0 -- python train.py ...

The scheduler, the servers and the workers are separate processes, on this machine or, through ssh,
on the machines of a hostfile. Each writes its output to a file in --logs; the output of worker 0 is
also printed. When a process dies, or is stopped for longer than --stopped-timeout, the job ends
with a message that names it. No process and no shared memory is left behind.

A hostfile has one line NAME or NAME slots=N per machine, which then runs up to N workers. All
machines need this folder, this Python at the same path, and ssh login without a password. The
scheduler runs on the first machine.

The exit code is 0 if all workers exited with 0; the exit code of the first failed worker; 1 if a
process was killed or stopped, or a server or the scheduler died; 124 after --timeout; 2 for wrong
arguments.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from byteps_compressors.build import byteps_folder, plugin
from byteps_compressors.hosts import LOCALHOST, Host, is_loopback, read_hostfile, spread
from byteps_compressors.job import STOPPED_TIMEOUT, Job, JobError, Network
from gradcomp.errors import ConfigError, GradcompError

__all__ = ["main"]

EXIT_ARGUMENTS = 2

_PORTS = range(20000, 32768)
"""Ports of schedulers: Linux gives those from 32768 on to connections."""


def _free_port() -> int:
    """A port that no process uses, and that the system gives to none by itself.

    The scheduler binds it seconds later: one from the system may be another connection's by then.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise ConfigError(
        f"every port from {_PORTS[0]} to {_PORTS[-1]} is in use; give one with --port"
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; it must be at least 1")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text}; it must be a number of seconds above 0")
    return seconds


def _port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{number}; it must be between 1 and 65535")
    return number


def _job(arguments: argparse.Namespace) -> Job:
    """Make the job that the arguments describe.

    Raises:
        ConfigError: the arguments contradict each other, or the hostfile is invalid.
    """
    interface = arguments.interface
    if arguments.hostfile is None:
        workers = arguments.workers or 2
        hosts = [Host(LOCALHOST, workers)]
    else:
        workers = arguments.workers
        hosts = read_hostfile(arguments.hostfile)
    if len(hosts) > 1 and not interface:
        raise ConfigError(
            "several machines need --interface, the network interface that connects them, such as "
            "eth0 (ip addr lists them)"
        )
    first = hosts[0].name
    if len(hosts) > 1 and is_loopback(first) and interface != "lo":
        raise ConfigError(
            f"{arguments.hostfile}: the scheduler runs on the first machine, {first}, but every "
            "machine resolves this name to itself; give the name or address that the others use"
        )
    return Job(
        arguments.command,
        spread(hosts, workers, arguments.servers),
        Network(interface or "lo", first, arguments.port or _free_port()),
        arguments.logs,
        arguments.env,
        arguments.timeout,
        arguments.stopped_timeout,
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m byteps_compressors.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workers",
        type=_count,
        metavar="N",
        help="number of workers; default: 2, or the number of slots in the hostfile",
    )
    parser.add_argument(
        "--servers", type=_count, default=1, metavar="N", help="number of servers; default: 1"
    )
    parser.add_argument(
        "--hostfile", type=Path, metavar="FILE", help="file with the machines; default: only this"
    )
    parser.add_argument(
        "--interface",
        metavar="NAME",
        default=os.environ.get("DMLC_INTERFACE"),
        help="network interface, such as eth0, on all machines; default: DMLC_INTERFACE, or lo on "
        "one machine",
    )
    parser.add_argument(
        "--port", type=_port, metavar="N", help="scheduler's port; default: a free one"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="further environment variable to pass to other machines, besides PATH, PYTHONPATH, "
        "LD_LIBRARY_PATH and those of BytePS and gradcomp; may be repeated",
    )
    parser.add_argument(
        "--logs",
        type=Path,
        metavar="DIR",
        help="folder for the log files; default: byteps-logs",
        default=Path("byteps-logs"),
    )
    parser.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="time limit; default: none"
    )
    parser.add_argument(
        "--stopped-timeout",
        type=_seconds,
        metavar="SECONDS",
        default=STOPPED_TIMEOUT,
        help="end the job if a process is stopped (SIGSTOP) for this long; default: %(default)g",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="command of each worker, after --"
    )
    arguments = parser.parse_args(argv)
    arguments.command = arguments.command[arguments.command[:1] == ["--"] :]
    if not arguments.command:
        parser.error("no command for the workers; add one, such as -- python train.py")
    if shutil.which(arguments.command[0]) is None:
        parser.error(f"program '{arguments.command[0]}' not found; check its name and PATH")
    return arguments


class _EndedBySignalError(Exception):
    """The launcher received a signal to end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job; returns its exit code."""
    arguments = _parse(argv)

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
        raise _EndedBySignalError(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        byteps_folder()
        plugin()  # compiled once, before the workers need it, so that an error is shown here
        job = _job(arguments)
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
