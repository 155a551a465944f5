"""Elastic training with DistributedDataParallel: machines come and go, and training goes on by itself.

On each machine, with a folder that all of them share and a HOST that stays:

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --nnodes=1:2 --nproc-per-node=1 --max-restarts=3 --rdzv-id=digits \
        --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 examples/elastic_digits.py

With --gossip each rank has a model of its own (GossipDataParallel).
"""

import argparse
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_compressors import GossipDataParallel, ddp_hook, init_process_group

parser = argparse.ArgumentParser()
parser.add_argument("--compression", default="residual|topk(ratio=0.01)", metavar="SPEC")
parser.add_argument("--gossip", action="store_true", help="gossip in place of averages")
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
parser.add_argument("--output", type=Path, default=Path("checkpoints/elastic"), metavar="DIR")
arguments = parser.parse_args()

# The wait for a machine that dies while all of them start.
init_process_group(timeout=timedelta(minutes=2))
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
torch.set_num_threads(1)

digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
classes = torch.tensor(digits.target)

module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
if arguments.gossip:
    model = saved = GossipDataParallel(module, algorithm="choco", codec="topk(ratio=0.1)")
    optimizer = model.attach(optimizer)
else:
    model = DistributedDataParallel(module)
    saved, hook = ddp_hook(arguments.compression, model)
    model.register_comm_hook(saved, hook)

# On any number of ranks; 0 if there is no checkpoint yet.
first = saved.load(arguments.output, missing_ok=True)
if first and not arguments.gossip:  # checkpoints of gossip have the models
    module.load_state_dict(torch.load(arguments.output / f"model-{first}.pt", weights_only=True))
if rank == 0:
    print(f"step {first} on {size} ranks", flush=True)

for step in range(first, arguments.steps):
    # All ranks together take 48 samples in each step, however many ranks there are.
    generator = torch.Generator().manual_seed(step)
    mine = torch.randint(1440, (48,), generator=generator)[rank::size]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images[mine]), classes[mine]).backward()
    optimizer.step()
    if (step + 1) % arguments.every == 0:
        if rank == 0 and not arguments.gossip:
            arguments.output.mkdir(parents=True, exist_ok=True)
            torch.save(module.state_dict(), arguments.output / f"model-{step + 1}.pt")
            old = arguments.output / f"model-{step + 1 - 3 * arguments.every}.pt"
            old.unlink(missing_ok=True)
        saved.save(arguments.output, step + 1, keep=3)

if rank == 0:
    right = module(images[1440:]).argmax(1) == classes[1440:]
    print(f"test accuracy {right.float().mean():.4f}", flush=True)
