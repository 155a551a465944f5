"""A script with DistributedDataParallel."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradcomp import Config, load_config
from torch_compressors import DDPCompression, GradientAverager, ddp_hook, init_process_group


def train(config: Config) -> float:
    init_process_group()
    model = DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state, hook = ddp_hook(config, model, optimizer)
    model.register_comm_hook(state, hook)
    checked: DDPCompression = state
    for epoch in range(3):
        checked.set_epoch(epoch)
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
    checked.save("checkpoints", 3)
    step: int | None = checked.load("checkpoints")
    print(step, checked.stats.as_dict()["steps"])
    ratio: float = checked.stats.ratio
    dist.destroy_process_group()
    return ratio


def loop_without_a_wrapper(model: torch.nn.Module) -> None:
    averager = GradientAverager("residual|int8", model.named_parameters())
    averager.average()


def main() -> None:
    train(load_config(["compress.yaml"], ["seed=3"]))
    model = DistributedDataParallel(torch.nn.Linear(8, 2))
    model.register_comm_hook(*ddp_hook(model=model))
    model.register_comm_hook(*ddp_hook("powersgd(rank=4)", model))
