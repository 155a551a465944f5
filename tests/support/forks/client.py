"""``python -ES client.py ADDRESS ARGUMENTS`` is ``python ARGUMENTS`` as a fork of the server at the address.

The program runs in the fork, with this process's arguments, environment, folder and standard streams.
This process passes signals on to the fork, and ends as it ends; if this process is killed, so is the fork.
"""

import json
import os
import signal
import socket
import sys

_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)


def main() -> None:
    """Send the request, and wait for the end of the fork."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    server = socket.socket(socket.AF_UNIX)
    server.connect(sys.argv[1])
    request = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(request)
    answers = server.makefile("r")
    fork = int(answers.readline())
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: os.kill(fork, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    status = int(answers.readline())
    if status < 0:
        if -status in _SIGNALS:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
