"""A DDP job of two ranks with the installed gradcomp: ``scripts/release`` runs it with each wheel.

    python scripts/wheels/two_ranks.py

starts both ranks, of this Python, on Gloo. Each compresses a small model's gradients, and fails if its parameters are
not those of the other one, if the loss has not fallen, or if it did not send far fewer bytes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import timedelta

SPEC = "residual|topk(ratio=0.01)"
STEPS = 50
LEAST_RATIO = 20
"""How many times fewer bytes at least; 59.5 were seen, on both processors."""


def start() -> int:
    """Start both ranks; returns the exit status."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # Debian's PyTorch has no libuv, and the name of a machine may have no address that answers.
    job |= {"USE_LIBUV": "0", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, __file__], env={**os.environ, **job, "RANK": str(rank)})
        for rank in range(2)
    ]
    return max(abs(rank.wait()) for rank in ranks)


def train() -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from torch_compressors import ddp_hook, init_process_group

    init_process_group(timeout=timedelta(minutes=10))  # long enough for an emulated processor
    torch.manual_seed(0)
    layers = (torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    state, hook = ddp_hook(SPEC, model)
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 256)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    both = [torch.empty_like(flat) for _ in range(2)]
    dist.all_gather(both, flat)
    ratio = state.stats.ratio
    said = f"PyTorch {torch.__version__}, 2 ranks: loss {losses[-1]:.6f}, {ratio:.1f} times fewer bytes"
    if not (torch.equal(*both) and losses[-1] < losses[0] and ratio > LEAST_RATIO):
        sys.exit(f"{said}, first loss {losses[0]:.6f}, equal ranks: {torch.equal(*both)}")
    if dist.get_rank() == 0:
        print(said)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(start())
