"""A script with BytePS."""

from __future__ import annotations

import byteps.torch as bps
import torch

from byteps_compressors.torch import DistributedOptimizer


def main() -> None:
    bps.init()
    model = torch.nn.Linear(8, 2)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        compression="residual|topk(ratio=0.01)",
    )
    optimizer.zero_grad()
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    optimizer.compression.save("checkpoints", 1)
    step: int | None = optimizer.compression.load("checkpoints")
    print(step, optimizer.compression.stats)
