"""A training script on stock Horovod, without any compression of its own.

``--plain`` leaves the optimizer alone. The last line printed is JSON.
"""

import argparse
import json
import os
import sys

import horovod.torch as hvd
import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--config", default="the script's own")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if not options.plain:
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=hvd.Compression.fp16,
        )
    for _ in range(options.steps):
        optimizer.zero_grad()
        model(torch.randn(8, 100)).square().mean().backward()
        optimizer.step()
    final = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    of_ranks = hvd.allgather(final[None], name="final")
    if hvd.rank() == 0:
        same = bool((of_ranks == of_ranks[0]).all())
        print(json.dumps({"same": same, "config": options.config, "name": __name__}), flush=True)
    if "HOROVOD_TIMELINE" in os.environ:
        hvd.stop_timeline()  # Horovod's shutdown drops what its thread has not written yet
    sys.exit()


if __name__ == "__main__":
    main()
