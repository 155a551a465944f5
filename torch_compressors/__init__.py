"""What is PyTorch's alone: DDP's communication hook, training by gossip, and an optimizer that all
adapters share."""

from __future__ import annotations

from torch_compressors.ddp import DDPCompression, ddp_hook
from torch_compressors.dgc_sgd import DGCSGD
from torch_compressors.gossip import GossipDataParallel

__all__ = ["DGCSGD", "DDPCompression", "GossipDataParallel", "ddp_hook"]
