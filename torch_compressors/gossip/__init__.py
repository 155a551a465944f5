"""Decentralized training on torch.distributed."""

from __future__ import annotations

from torch_compressors.gossip.data_parallel import GossipDataParallel
from torch_compressors.gossip.transport import Transport

__all__ = ["GossipDataParallel", "Transport"]
