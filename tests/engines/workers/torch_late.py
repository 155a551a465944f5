"""Rank LATE never comes to `init_process_group`, and the others wait for it for 10 seconds.

python -m workers.torch_late LATE
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

from gradcomp.errors import PeerError
from torch_compressors import init_process_group


def main(late: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rank = int(os.environ["RANK"])
    if rank == late:
        time.sleep(25)
        return
    try:
        init_process_group(timeout=timedelta(seconds=10))
    except PeerError as error:
        print(f"rank {rank} reports: {error}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
