"""Runs one job in a lab: a rank on each host."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from netlab.lab import INTERFACE, Lab

__all__ = ["ENGINES", "JobError", "hosts_of", "run", "stand_in_for_ssh"]

ENGINES = ("horovod", "mpi", "torch", "byteps")

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 3.0
_LAST_LINES = 25
# The hosts of a laboratory share the processors of this machine.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "GRADCOMP_THREADS": "1"}
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class JobError(Exception):
    """A job has failed; the text names the rank and has the end of its output."""


def hosts_of(engine: str, ranks: int) -> int:
    """Number of hosts of a job: BytePS' scheduler and server have one of their own."""
    return ranks + (engine == "byteps")


def run(
    lab: Lab, engine: str, ranks: int, command: Sequence[str], logs: Path, timeout: float
) -> None:
    """Run a command as every rank of a job, each on a host of its own.

    Args:
        lab: with at least ``hosts_of(engine, ranks)`` hosts.
        engine: ``horovod`` (on Gloo), ``mpi`` (Horovod on Open MPI), ``torch``
            (torch.distributed's ``env://``) or ``byteps``.
        logs: folder for a log of each process.
        timeout: seconds that the job may take.

    Raises:
        JobError: a rank has failed, or time is up. All ranks have ended by then.
    """
    logs.mkdir(parents=True, exist_ok=True)
    if engine == "byteps":
        _run_byteps(lab, ranks, command, logs, timeout)
    elif engine == "mpi":
        _run_mpi(lab, ranks, command, logs, timeout)
    elif engine == "torch":
        environments = [_torch(lab, rank, ranks) for rank in range(ranks)]
        _run_all(_ranks(lab, environments, command), logs, timeout)
    else:
        with _rendezvous(lab, ranks) as environments:
            _run_all(_ranks(lab, environments, command), logs, timeout)


class _Process(NamedTuple):
    """A process to start; ``name`` also names its log."""

    name: str
    command: list[str]
    environment: Mapping[str, str] = MappingProxyType({})


def _ranks(
    lab: Lab, environments: Sequence[Mapping[str, str]], command: Sequence[str]
) -> list[_Process]:
    return [
        _Process(f"rank-{rank}", lab.command(rank, command), environment)
        for rank, environment in enumerate(environments)
    ]


def _run_all(started: Sequence[_Process], logs: Path, timeout: float) -> None:
    """Run all processes to their ends; after a failure, end all of them."""
    deadline = time.monotonic() + timeout
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for program in started:
            with (logs / f"{program.name}.log").open("wb") as log:
                process = subprocess.Popen(
                    program.command,
                    env={**_ONE_THREAD, **os.environ, **program.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            processes.append(process)
        while True:
            codes = [process.poll() for process in processes]
            failed = {
                program.name: code for program, code in zip(started, codes, strict=True) if code
            }
            if failed:
                raise JobError(_failure(failed, logs))
            if None not in codes:
                break
            if time.monotonic() > deadline:
                raise JobError(f"the job still ran after {timeout:g} s; its logs are in {logs}")
            time.sleep(_POLL_SECONDS)
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _failure(failed: Mapping[str, int], logs: Path) -> str:
    """The error of one failed process: if one was killed, the others' errors only follow from it."""
    name = min(failed, key=lambda program: failed[program] != -signal.SIGKILL)
    end = f"ended with exit code {failed[name]}"
    if failed[name] == -signal.SIGKILL:
        end = "was killed, as the system does with the largest process when memory runs out"
    log = logs / f"{name}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    return f"{name} {end}; the end of {log}:\n" + "\n".join(lines)


def _torch(lab: Lab, rank: int, ranks: int) -> dict[str, str]:
    return {
        "MASTER_ADDR": lab.address(0),
        "MASTER_PORT": "29500",  # the namespace is ours alone
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": "1",
        "GLOO_SOCKET_IFNAME": INTERFACE,
    }


@contextmanager
def _rendezvous(lab: Lab, ranks: int) -> Iterator[list[dict[str, str]]]:
    """The environment that ``horovodrun --gloo`` sets, with a rendezvous server on this machine."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    hosts = ",".join(f"{lab.address(rank)}:1" for rank in range(ranks))
    slots = get_host_assignments(parse_hosts(hosts), ranks)
    server = RendezvousServer(0)
    port = server.start()
    server.init(slots)
    try:
        yield [
            {
                "HOROVOD_HOSTNAME": slot.hostname,
                "HOROVOD_RANK": str(slot.rank),
                "HOROVOD_SIZE": str(slot.size),
                "HOROVOD_LOCAL_RANK": str(slot.local_rank),
                "HOROVOD_LOCAL_SIZE": str(slot.local_size),
                "HOROVOD_CROSS_RANK": str(slot.cross_rank),
                "HOROVOD_CROSS_SIZE": str(slot.cross_size),
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": lab.gateway,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                "HOROVOD_GLOO_IFACE": INTERFACE,
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
            }
            for slot in slots
        ]
    finally:
        server.stop()


# In place of ssh: the last part of a host's address selects its namespace. Open MPI assumes shared
# memory between processes under one host name, so each host has a name of its own.
_SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
[ "$1" = -x ] && shift
[ "$1" = -- ] && shift
host=$1
shift
exec ip netns exec "gradcomp$((${host##*.} - 10))" \\
  unshare --uts sh -c "hostname gradcomp${host##*.}; $*"
"""


@contextmanager
def stand_in_for_ssh() -> Iterator[Path]:
    """A folder with a program ``ssh``, whose hosts are namespaces of the lab."""
    with tempfile.TemporaryDirectory() as folder:
        ssh = Path(folder, "ssh")
        ssh.write_text(_SSH, encoding="utf-8")
        ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
        yield Path(folder)


_MPI = {
    "HOROVOD_CONTROLLER": "mpi",
    "HOROVOD_CPU_OPERATIONS": "mpi",
    "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
    **_ONE_THREAD,
}
_EXPORTED = ("PATH", "PYTHONPATH", *_ONE_THREAD)


def _run_mpi(lab: Lab, ranks: int, command: Sequence[str], logs: Path, timeout: float) -> None:
    """By mpirun, which runs on this machine and reaches the hosts as it would by ssh."""
    with stand_in_for_ssh() as folder:
        parameters = {
            "plm_rsh_agent": str(folder / "ssh"),
            "oob_tcp_if_include": lab.network,
            "btl": "tcp,self",
            "btl_tcp_if_include": lab.network,
            "mpi_yield_when_idle": "1",  # the hosts share the processors
        }
        options = ["--allow-run-as-root", "--bind-to", "none", "-np", str(ranks)]
        options += ["-H", ",".join(f"{lab.address(rank)}:1" for rank in range(ranks))]
        for name, value in parameters.items():
            options += ["--mca", name, value]
        environment = {**_MPI, **{n: os.environ[n] for n in _EXPORTED if n in os.environ}}
        for name, value in environment.items():
            options += ["-x", f"{name}={value}"]
        _run_all([_Process("mpirun", ["mpirun", *options, *command])], logs, timeout)


def _run_byteps(lab: Lab, ranks: int, command: Sequence[str], logs: Path, timeout: float) -> None:
    """By the launcher for several machines."""
    with stand_in_for_ssh() as folder:
        hostfile = Path(folder, "hosts")
        lines = [f"{lab.address(ranks)} slots=0"]
        lines += [f"{lab.address(rank)} slots=1" for rank in range(ranks)]
        hostfile.write_text("\n".join(lines), encoding="utf-8")
        options = ["--hostfile", str(hostfile), "--interface", INTERFACE, "--port", "9100"]
        options += ["--logs", str(logs), "--timeout", str(timeout)]
        launcher = [sys.executable, "-m", "byteps_compressors.launch", *options, "--", *command]
        path = os.pathsep.join([str(folder), os.environ["PATH"]])
        done = subprocess.run(
            launcher,
            env={**_ONE_THREAD, **os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise JobError(f"exit code {done.returncode}: {done.stderr.strip()}")
