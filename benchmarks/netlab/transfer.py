"""A TCP connection that measures itself; see Lab.measure.

python transfer.py receive ADDRESS NBYTES prints the port, then the bits per second;
python transfer.py send ADDRESS PORT sends until the receiver has enough.
"""

import contextlib
import socket
import sys
import time

BLOCK = 1 << 16
SKIPPED = (
    0.4  # share of all bytes: the buckets' content passes at once, and TCP has to find the rate
)


def receive(address: str, nbytes: int) -> None:
    """Print the rate at which the bytes arrive."""
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection:
            got = timed = 0
            began = time.perf_counter()
            while got < nbytes:
                block = len(connection.recv(BLOCK))
                got += block
                if got < SKIPPED * nbytes:
                    began = time.perf_counter()
                else:
                    timed += block
            print(8 * timed / (time.perf_counter() - began), flush=True)


def send(address: str, port: int) -> None:
    """Send zeros until the receiver closes."""
    with (
        socket.create_connection((address, port)) as connection,
        contextlib.suppress(ConnectionError),
    ):
        while True:
            connection.sendall(bytes(BLOCK))


if __name__ == "__main__":
    mode, address, number = sys.argv[1:]
    {"receive": receive, "send": send}[mode](address, int(number))
