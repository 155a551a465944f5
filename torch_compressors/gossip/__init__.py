"""Decentralized training on torch.distributed."""

from __future__ import annotations

from torch_compressors.gossip.asynchronous import AsyncGossipDataParallel
from torch_compressors.gossip.data_parallel import GossipDataParallel
from torch_compressors.gossip.module import DecentralizedModule
from torch_compressors.gossip.options import GossipOptions
from torch_compressors.gossip.transport import Transport

__all__ = [
    "AsyncGossipDataParallel",
    "DecentralizedModule",
    "GossipDataParallel",
    "GossipOptions",
    "Transport",
]
