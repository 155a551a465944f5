"""A script with Horovod and PyTorch."""

from __future__ import annotations

import horovod.torch as hvd
import torch

from horovod_compressors.torch import Compression, OuterStep


def main() -> int:
    hvd.init()
    model = torch.nn.Linear(8, 2)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    compression = Compression("residual|topk(ratio=0.01)", model.named_parameters())
    optimizer = hvd.DistributedOptimizer(
        plain,
        named_parameters=model.named_parameters(),
        compression=compression,  # pyright: ignore[reportArgumentType]
    )
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        compression.set_epoch(step)
    compression.save("checkpoints", 3, keep=2)
    restored: int | None = compression.load("checkpoints")
    sent: int = compression.stats.sent_bytes.total()
    print(restored, sent, compression.stats.ratio, compression.stats)
    configured = Compression.from_config("compress.yaml", ["seed=1"], model.named_parameters())
    print(configured.stats.as_dict())
    outer = OuterStep("int4", model, every=30)
    outer.step()
    return 0
