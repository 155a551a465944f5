"""A script with outer steps."""

from __future__ import annotations

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # PyTorch's

from torch_compressors import ElasticOuterStep, OuterStep


def main() -> None:
    model = torch.nn.Linear(512, 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = OuterStep("int4", model, every=30)
    for _ in range(60):
        model(torch.randn(1, 512)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        outer.step()
    print(outer.stats.ratio)
    store = TCPStore("head", 29400, is_master=False)
    elastic = ElasticOuterStep("residual|int4", model, store=store, name="a", quorum=2, grace=10.0)
    while elastic.rounds < 1000:
        elastic.step(samples=16)
