"""A training script for torchrun on two ranks, for outer steps: no compression of its own.

Each line of JSON is a part of the script: whether both ranks have the same parameters after each of its
steps, or the error that it got.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def report(**values: object) -> None:
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()


def network() -> DistributedDataParallel:
    torch.manual_seed(dist.get_rank())
    return DistributedDataParallel(
        nn.Sequential(nn.Linear(100, 100), nn.BatchNorm1d(100), nn.Linear(100, 3))
    )


def loss(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(8, 100)).square().mean()


def same(model: nn.Module) -> bool:
    mine = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    return torch.equal(*both)


def accumulation() -> list[bool]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found = []
    for _ in range(6):
        optimizer.zero_grad()
        with model.no_sync():
            loss(model).backward()
        loss(model).backward()
        optimizer.step()
        found.append(same(model))
    return found


def skipped_steps() -> list[bool]:
    """The second step has an infinite gradient on rank 1 alone."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    found = []
    for step in range(6):
        optimizer.zero_grad()
        scaler.scale(loss(model)).backward()
        if (step, dist.get_rank()) == (1, 1):
            next(model.parameters()).grad.fill_(torch.inf)
        scaler.step(optimizer)
        scaler.update()
        found.append(same(model))
    return found


def later_parameters() -> tuple[list[bool], list[bool]]:
    """Of the last layer, and of the first one, which is trained from the second step on."""
    model = network()
    first, _, last = model.module
    optimizer = torch.optim.SGD(last.parameters(), lr=0.01)
    of_last, of_first = [], []
    for step in range(6):
        if step == 1:
            optimizer.add_param_group({"params": list(first.parameters())})
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
        of_last.append(same(last))
        of_first.append(same(first))
    return of_last, of_first


def buffers() -> bool:
    """Whether a forward pass leaves each rank its own statistics."""
    model = network()
    model(torch.randn(8, 100))
    mine = model.module[1].running_mean
    both = [torch.empty_like(mine) for _ in range(2)]
    model(torch.randn(8, 100))
    dist.all_gather(both, mine)
    return torch.equal(*both)


def two_models() -> list[bool]:
    """Both with one optimizer."""
    models = [network(), network()]
    optimizer = torch.optim.SGD([p for one in models for p in one.parameters()], lr=0.01)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        for model in models:
            loss(model).backward()
        optimizer.step()
        found.append(all(map(same, models)))
    return found


def two_optimizers() -> None:
    model = network()
    loss(model).backward()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2)]
    for optimizer in optimizers:
        optimizer.step()


def zero() -> None:
    model = network()
    loss(model).backward()
    ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01).step()


def join() -> None:
    with network().join():
        pass


def main() -> None:
    dist.init_process_group("gloo")
    for part in (accumulation, skipped_steps, later_parameters, two_models, buffers):
        report(part=part.__name__, found=part())
    for part in (two_optimizers, zero, join):
        try:
            part()
        except ValueError as error:
            report(part=part.__name__, error=str(error))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
