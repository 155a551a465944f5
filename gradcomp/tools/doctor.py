"""The state of an installation: each part is tried, and each fault has the command that fixes it."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

from gradcomp.errors import CORE_REMEDY, remedy_for

__all__ = ["Finding", "examine"]

_AT_ONCE = 2
"""Trials that run at the same time."""

_PROGRAM = "int main() { return 0; }"


@dataclass(frozen=True)
class Finding:
    """The state of one part of the installation."""

    name: str
    status: Literal["works", "missing", "broken"]
    detail: str
    fix: str | None = None
    """The command that installs or fixes it; None if it works."""


@dataclass(frozen=True)
class _Part:
    """A part that `gradcomp.tools.probes` tries, if its packages are installed."""

    name: str
    probe: str
    packages: tuple[str, ...]
    fix: str
    optional: bool = False
    """No line tells of it while its packages are missing."""


_TORCH = remedy_for("torch")
_PARTS = (
    _Part("core", "core", (), CORE_REMEDY),
    _Part("PyTorch", "torch", ("torch",), _TORCH),
    _Part("torch.distributed", "distributed", ("torch",), _TORCH),
    _Part(
        "CUDA",
        "cuda",
        ("torch",),
        "pip install a build of torch for CUDA; nvidia-smi lists the devices",
    ),
    _Part("Triton", "triton", ("triton",), "pip install --force-reinstall triton", optional=True),
    _Part("TensorFlow", "tensorflow", ("tensorflow",), remedy_for("tensorflow")),
    _Part("Horovod, PyTorch", "horovod-torch", ("horovod", "torch"), remedy_for("horovod")),
    _Part(
        "Horovod, TensorFlow",
        "horovod-tensorflow",
        ("horovod", "tensorflow"),
        remedy_for("tensorflow"),
    ),
    _Part("BytePS", "byteps", ("byteps", "torch"), remedy_for("byteps")),
    _Part(
        "BytePS plug-in",
        "byteps-plugin",
        ("byteps", "torch"),
        remedy_for("byteps"),
        optional=True,
    ),
    *(
        _Part(name, name.lower(), (name.lower(),), remedy_for(name.lower()), optional=True)
        for name in ("Accelerate", "Lightning", "Transformers", "torchft")
    ),
)


def examine(timeout: float) -> Iterator[Finding]:
    """Try all parts, each for at most ``timeout`` seconds; findings come in a fixed order."""
    yield Finding(
        "Python",
        "works",
        f"{platform.python_version()} ({sys.executable}), {platform.machine()}, "
        f"{' '.join(platform.libc_ver())}",
    )
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from filter(None, pool.map(lambda part: _try(part, timeout), _PARTS))
    yield _compiler(timeout)
    yield _program("ssh", "-V", "apt-get install openssh-client", "jobs on several hosts", timeout)
    yield _program(
        "mpirun", "--version", "apt-get install openmpi-bin", "Horovod over MPI", timeout
    )


def _try(part: _Part, timeout: float) -> Finding | None:
    absent = [name for name in part.packages if PathFinder.find_spec(name) is None]
    if absent:
        if part.optional:
            return None
        return Finding(part.name, "missing", f"no package {absent[0]}", remedy_for(absent[0]))
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        ended = _run(
            [sys.executable, "-P", "-m", "gradcomp.tools.probes", part.probe, str(answer)],
            timeout,
            {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        found = json.loads(answer.read_text()) if answer.exists() else {}
    if "detail" in found and ended == 0:
        return Finding(part.name, "works", found["detail"])
    problem = found.get("problem") or _end(ended, timeout)
    fix = found.get("fix") or part.fix
    if ended == -signal.SIGILL and part.probe.startswith("byteps"):
        problem += ": the wheel was built for another CPU"
        fix = f"GRADCOMP_BYTEPS_MARCH=x86-64 {fix}"
    status: Literal["missing", "broken"] = "broken" if found.get("built", True) else "missing"
    return Finding(part.name, status, problem, fix)


def _end(code: int | None, timeout: float) -> str:
    if code is None:
        return f"no answer within {timeout:g} s (--timeout changes the limit)"
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended with exit code {code}"


def _run(command: list[str], timeout: float, env: dict[str, str] | None = None) -> int | None:
    """The exit code; None if it was ended after ``timeout`` seconds, with all its children."""
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def _compiler(timeout: float) -> Finding:
    """Whether a C++ compiler makes a program, which the plug-in of BytePS needs."""
    command = shlex.split(os.environ.get("CXX", "c++"))
    fix = "apt-get install g++, or set CXX to another compiler"
    if not command or shutil.which(command[0]) is None:
        return Finding("C++ compiler", "missing", f"no '{' '.join(command)}' on PATH", fix)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "main.cpp"
        source.write_text(_PROGRAM)
        program = str(Path(folder) / "main")
        compiled = _run([*command, "-std=c++17", str(source), "-o", program], timeout)
        ended = _run([program], timeout) if compiled == 0 else compiled
    if ended != 0:
        return Finding("C++ compiler", "broken", f"{command[0]}: {_end(ended, timeout)}", fix)
    return Finding("C++ compiler", "works", f"{shutil.which(command[0])} builds programs of C++17")


def _program(name: str, option: str, fix: str, purpose: str, timeout: float) -> Finding:
    path = shutil.which(name)
    if path is None:
        return Finding(name, "missing", f"not on PATH; for {purpose}", fix)
    ended = _run([path, option], timeout)
    if ended != 0:
        return Finding(name, "broken", f"{path} {option}: {_end(ended, timeout)}", fix)
    return Finding(name, "works", f"{path}, for {purpose}")
