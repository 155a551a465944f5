"""A process that imports frameworks once, and forks: its forks run programs that import them at once.

``python server.py SOCKET MODULES`` imports the modules, and ends when its standard input does. SOCKET is the
descriptor of a listening socket, where ``client.py`` asks for forks. What Python reads when it starts, such as
PYTHONHASHSEED and PYTHONWARNINGS, is the server's in all forks.
"""

import atexit
import ctypes
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import warnings
from contextlib import suppress
from typing import Any


class _Server:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector = selectors.DefaultSelector()
        for source in (self._listener, self._woken, sys.stdin):
            self._selector.register(source, selectors.EVENT_READ)
        self._clients: dict[socket.socket, int] = {}

    def serve(self) -> list[str] | None:
        """Fork as clients ask for it; returns in each fork, with its arguments, and in the server at the end."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    for fork in self._clients.values():
                        os.kill(fork, signal.SIGKILL)
                    return None
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._report()
                elif key.fileobj in self._clients:
                    self._kill(key.fileobj)
                elif key.fileobj is self._listener and (arguments := self._fork()):
                    return arguments

    def _report(self) -> None:
        """Tell the clients of the forks that have ended how they ended."""
        with suppress(ChildProcessError):
            while (end := os.waitpid(-1, os.WNOHANG))[0]:
                (client,) = (client for client, fork in self._clients.items() if fork == end[0])
                self._tell(client, os.waitstatus_to_exitcode(end[1]))
                self._forget(client)

    def _tell(self, client: socket.socket, number: int) -> None:
        with suppress(OSError):  # the client was killed
            client.sendall(b"%d\n" % number)

    def _kill(self, client: Any) -> None:
        """Kill the fork of a client that was killed, and reap it later."""
        self._selector.unregister(client)
        with suppress(ProcessLookupError):
            os.kill(self._clients[client], signal.SIGKILL)

    def _forget(self, client: socket.socket) -> None:
        with suppress(KeyError):
            self._selector.unregister(client)
        del self._clients[client]
        client.close()

    def _fork(self) -> list[str] | None:
        client, _ = self._listener.accept()
        size, streams, _, _ = socket.recv_fds(client, 4, 3)
        if not size:
            return None  # killed before it asked
        with client.makefile("rb") as file:
            request = file.read(int.from_bytes(size, "big"))
        fork = os.fork()
        if not fork:
            self._close()
            return _become(request, streams)
        for stream in streams:
            os.close(stream)
        self._clients[client] = fork
        self._selector.register(client, selectors.EVENT_READ)
        self._tell(client, fork)
        return None

    def _close(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for own in (self._listener, self._woken, self._waker, *self._clients):
            own.close()


def _become(request: bytes, streams: list[int]) -> list[str]:
    """Take over the client's streams, folder and environment; returns its arguments."""
    arguments, folder, environment = json.loads(request)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return list(arguments)


def _end(status: int) -> None:
    """End a fork, but for the second in which Python frees the modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # what C++ has printed
    os._exit(status)


def _run(arguments: list[str]) -> dict[str, Any] | None:
    """Run ``python ARGUMENTS``, with the options -W, -P, -m and -c.

    Returns:
        What a script leaves, to be kept to the end of the process: a model of DDP waits for threads when it is freed.
    """
    paths = os.environ.get("PYTHONPATH", "")
    sys.path[:1] = [path for path in paths.split(os.pathsep) if path]
    safe_path = False
    while (option := arguments[0]) in ("-W", "-P"):
        del arguments[0]
        if option == "-P":
            safe_path = True
        else:
            action = arguments.pop(0)
            warnings.simplefilter(action)  # type: ignore[arg-type]
            sys.warnoptions.append(action)
    threads, torch = os.environ.get("OMP_NUM_THREADS"), sys.modules.get("torch")
    if threads and torch:
        torch.set_num_threads(int(threads))
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        if not safe_path:
            sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        return runpy.run_path(arguments[0], run_name="__main__")
    return None


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    print("ready", flush=True)
    if (_arguments := _Server(socket.socket(fileno=int(sys.argv[1]))).serve()) is not None:
        _status = 0
        try:
            _left = _run(_arguments)
        except SystemExit as _exit:
            if not isinstance(_exit.code, int | None):
                print(_exit.code, file=sys.stderr)
            _status = _exit.code if isinstance(_exit.code, int) else int(_exit.code is not None)
        _end(_status)
