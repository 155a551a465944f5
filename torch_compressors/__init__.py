"""What is PyTorch's alone: communication hooks of DDP and FSDP, training by gossip, and an
optimizer that all adapters share."""

from __future__ import annotations

from torch_compressors.ddp import DDPCompression, ddp_hook
from torch_compressors.dgc_sgd import DGCSGD
from torch_compressors.fsdp import FSDPCompression, fsdp_hook
from torch_compressors.gossip import AsyncGossipDataParallel, GossipDataParallel
from torch_compressors.launch import init_process_group

__all__ = [
    "DGCSGD",
    "AsyncGossipDataParallel",
    "DDPCompression",
    "FSDPCompression",
    "GossipDataParallel",
    "ddp_hook",
    "fsdp_hook",
    "init_process_group",
]
