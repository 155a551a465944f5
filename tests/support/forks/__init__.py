"""Python processes as forks of one that has imported the large frameworks.

A process of PyTorch imports for 2.6 s, one of TensorFlow for 5 s, scikit-learn takes 2 s more, and a job has many.
Ranks, which import the project's code and the engines themselves, begin after these imports; in scripts/test full they
are processes of their own from the beginning.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psutil

from support.scope import FULL

__all__ = ["TENSORFLOW", "TORCH", "python", "running_forks"]

HERE = Path(__file__).parent
_MORE = tuple(
    name for name in ("pydantic", "sklearn.datasets") if find_spec(name.partition(".")[0])
)
"""Of the project's dependencies, those that take long. The extra ``dev`` has no scikit-learn."""

TORCH = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.run", *_MORE)
"""What jobs of PyTorch import for long; an optimizer's first step imports torch._dynamo."""

TENSORFLOW = ("tensorflow", "keras", *_MORE)
"""What jobs of TensorFlow import for long."""

_servers: list[subprocess.Popen[bytes]] = []


@cache
def python(imported: tuple[str, ...] = TORCH) -> tuple[str, ...]:
    """The beginning of a command that runs Python in a fork of a process that has imported these modules.

    Without any, and in scripts/test full, it runs in a process of its own.
    """
    if FULL or not imported:
        return (sys.executable,)
    folder = tempfile.mkdtemp()
    address = os.path.join(folder, "forks")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        # The server ends with this process, which alone has the other end of its standard input.
        its_input, _ = os.pipe()
        server = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), str(listener.fileno()), *imported],
            env={**os.environ, "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "1"},
            stdin=its_input,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
        os.close(its_input)
    assert server.stdout
    assert server.stdout.readline(), f"no imports of {imported}"
    atexit.register(server.kill)
    atexit.register(shutil.rmtree, folder)
    _servers.append(server)
    return (sys.executable, "-ES", str(HERE / "client.py"), address)


def running_forks() -> list[psutil.Process]:
    """All running forks, which are no children of the processes that asked for them, with their descendants."""
    running = []
    for server in _servers:
        running += psutil.Process(server.pid).children(recursive=True)
    return running
