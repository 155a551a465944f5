"""A script with fully_shard."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from torch_compressors.fsdp import fsdp_hook, fsdp_reduce_scatter


def main() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 64))
    for layer in (model[0], model[1], model):
        fully_shard(layer)
    state = fsdp_reduce_scatter("residual|int4", model)
    print(state.stats.ratio)
    state.save("checkpoints", 3)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    between = fsdp_hook("powersgd(rank=4)", model, mesh["replicate"].get_group())
    print(between.stats.as_dict())
