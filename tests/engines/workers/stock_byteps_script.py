"""A training script on stock BytePS, without any compression of its own.

``--plain`` leaves the optimizer alone, and tries BytePS' DDP. Each worker writes a line of JSON to ``reports``.
"""

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path

import byteps.torch as bps
import torch
from byteps.torch.parallel import DistributedDataParallel
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--config", default="the script's own")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("reports", type=Path)
    options = parser.parse_args()
    bps.init()
    torch.manual_seed(bps.rank())
    model = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if options.plain:
        with suppress(AssertionError):  # it wants a GPU
            DistributedDataParallel(model)
    else:
        optimizer = bps.DistributedOptimizer(
            optimizer, model.named_parameters(), compression=bps.Compression.fp16
        )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(options.steps):
        optimizer.zero_grad()
        model(torch.randn(8, 100)).square().mean().backward()
        optimizer.step()
    weight = next(model.parameters())
    row = {"rank": bps.rank(), "config": options.config, "name": __name__}
    row["changed"] = int((weight.grad != 0).sum())
    row["total"] = float(weight.detach().double().sum())
    (options.reports / f"{bps.rank()}.json").write_text(json.dumps(row))
    bps.shutdown()
    sys.exit()


if __name__ == "__main__":
    main()
