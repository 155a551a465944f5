"""What is PyTorch's alone: communication hooks of DDP and FSDP, training by gossip, and an
optimizer that all adapters share.

`torch_compressors.fsdp` is not imported here, as PyTorch's part of it takes long to import.
"""

from __future__ import annotations

from torch_compressors.ddp import DDPCompression, ddp_hook
from torch_compressors.dgc_sgd import DGCSGD
from torch_compressors.gossip import AsyncGossipDataParallel, GossipDataParallel
from torch_compressors.launch import init_process_group

__all__ = [
    "DGCSGD",
    "AsyncGossipDataParallel",
    "DDPCompression",
    "GossipDataParallel",
    "ddp_hook",
    "init_process_group",
]
