"""A training script for torchrun, without any compression of its own.

Each rank trains a sharded model and a DDP model, and rank 0 starts another process. Each step prints a
line of JSON.
"""

import argparse
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision


def report(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def network() -> nn.Sequential:
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3))


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 100)).square().mean().backward()
        optimizer.step()


def train_ddp(steps: int) -> DistributedDataParallel:
    model = DistributedDataParallel(network())
    train(model, steps)
    weight = next(model.parameters())
    changed, total = int((weight.grad != 0).sum()), float(weight.detach().double().sum())
    report(step="ddp", rank=dist.get_rank(), changed=changed, total=total)
    return model


def train_sharded(steps: int) -> None:
    from torch.distributed.fsdp import fully_shard

    model = network()
    for layer in (model[0], model):
        fully_shard(layer)
    train(model, steps)


def register_own_hooks(model: DistributedDataParallel) -> None:
    """By the script itself, and by an option of DDP."""
    try:
        model.register_comm_hook(None, fp16_compress_hook)
    except ValueError as error:
        report(step="hook", rank=dist.get_rank(), error=str(error))
    precision = _MixedPrecision(param_dtype=torch.bfloat16)
    try:
        DistributedDataParallel(network(), mixed_precision=precision)
    except (ValueError, RuntimeError) as error:  # PyTorch built for CUDA refuses it without a GPU
        report(step="precision", rank=dist.get_rank(), error=str(error))


def in_new_process(index: int, folder: str, steps: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    train_ddp(steps)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--config", default="the script's own")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    # Not last: an interpreter that ends right after collectives of fully_shard may be aborted, as a
    # thread of PyTorch releases a Python object of theirs after its end.
    # From PyTorch 2.8 on: that of 2.6 needs a GPU.
    if hasattr(torch.distributed.fsdp, "FSDPModule") and hasattr(
        torch.distributed.fsdp.FSDPModule, "set_all_reduce_hook"
    ):
        train_sharded(options.steps)
    model = train_ddp(options.steps)
    register_own_hooks(model)
    rank = dist.get_rank()
    report(step="end", rank=rank, config=options.config, name=__name__)
    dist.destroy_process_group()
    if rank == 0:
        del os.environ["RANK"]
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(in_new_process, (folder, options.steps))


if __name__ == "__main__":
    main()
