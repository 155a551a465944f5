"""A script with gossip."""

from __future__ import annotations

import torch

from torch_compressors import AsyncGossipDataParallel, GossipDataParallel


def main() -> None:
    model = GossipDataParallel(torch.nn.Linear(64, 10), algorithm="sgp", topology="npdde")
    optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    loss: torch.Tensor = model(torch.randn(16, 64)).sum()
    loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's
    optimizer.step()
    model.synchronize()
    print(model.traffic.bits / model.traffic.steps)
    other = AsyncGossipDataParallel(torch.nn.Linear(64, 10))
    other.synchronize()
