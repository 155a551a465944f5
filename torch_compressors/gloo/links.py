"""Collectives on Gloo for `gradcomp advise --measure`."""

from __future__ import annotations

import os

import torch.distributed as dist

from gradcomp.adapter_api import JobLinks
from gradcomp_torch.compat import destroy_process_group
from torch_compressors.gloo.engine import GlooEngine
from torch_compressors.gloo.nodes import exchange_groups

__all__ = ["open_links"]

_LIMIT = 1 << 31


def open_links() -> JobLinks:
    """Join the job that torchrun has started."""
    dist.init_process_group("gloo")
    world = dist.group.WORLD
    assert world is not None  # initialized
    engine = GlooEngine(exchange_groups(world, 1, None), _LIMIT, "gradcomp advise")
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return JobLinks("torch", engine, world.rank(), world.size(), per_node, destroy_process_group)
