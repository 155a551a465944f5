"""Rank LATE never comes to a function, and the others wait for it for 5 seconds.

python -m workers.torch_late LATE init_process_group|ddp_hook
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import psutil
from torch.nn.parallel import DistributedDataParallel
from workers.dying import layers

from gradcomp.errors import PeerError
from torch_compressors import ddp_hook, init_process_group


def others_end() -> None:
    """Wait until the launcher has no process but this one."""
    launcher = psutil.Process(os.getppid())
    while len(launcher.children()) > 1:
        time.sleep(0.1)


def main(late: str, function: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rank = int(os.environ["RANK"])
    if rank == int(late) and function == "init_process_group":
        others_end()
        return
    try:
        init_process_group(timeout=timedelta(seconds=5))
        model = DistributedDataParallel(layers())
        if rank == int(late):
            others_end()
            return
        ddp_hook("fp16", model)
    except PeerError as error:
        print(f"rank {rank} reports: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
