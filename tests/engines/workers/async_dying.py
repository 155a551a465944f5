"""Three ranks that average in pairs, 0 - 1 - 2: ``python -m workers.async_dying STORE``.

Rank 1 is active. Rank 0 dies while it trains; the others must name the lost rank and end by
themselves. Prints the exit codes.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from gradcomp.gossip import from_edges
from torch_compressors import AsyncGossipDataParallel

RANKS = 3


def train(rank: int) -> None:
    torch.set_num_threads(1)
    store = f"file://{sys.argv[1]}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    model = AsyncGossipDataParallel(
        torch.nn.Linear(2, 2), topology=from_edges(RANKS, [(0, 1), (1, 2)]), timeout=20.0, retries=2
    )
    optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(10_000):
        if rank == 0 and model.traffic.steps >= 3:
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        time.sleep(0.001)
    print("nobody noticed")


def main() -> None:
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1).step()  # imports, once for all
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            train(rank)
            return
        children.append(child)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(f"exit codes: {ends}")


if __name__ == "__main__":
    main()
