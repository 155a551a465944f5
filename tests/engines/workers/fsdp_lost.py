"""Three machines of one rank train a sharded model until rank 1 ends in a backward pass, or stops.

python -m workers.fsdp_lost kill|raise|stop SPEC
"""

from __future__ import annotations

import signal
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from workers.dying import layers, make_end

from torch_compressors import init_process_group
from torch_compressors.fsdp import fsdp_hook


def main(way: str, spec: str) -> None:
    torch.set_num_threads(1)
    # The launcher ends all ranks when one has failed; each of them shall end with its own message.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    init_process_group()
    mesh = init_device_mesh("cpu", (3, 1), mesh_dim_names=("replicate", "shard"))
    model = layers()
    units: list[Any] = [*model, model]
    for unit in units:
        fully_shard(unit, mesh=mesh["shard"])
    fsdp_hook(spec, model, mesh.get_group("replicate"), timeout=timedelta(seconds=5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1000):
        output = model[:2](torch.randn(4, 80))
        if step == 5 and dist.get_rank() == 1:
            # The exchange of the last layer has begun when this gradient comes.
            output.register_hook(make_end(way))
        model[2](output).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
