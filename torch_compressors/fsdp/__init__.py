"""Compression for models that ``fully_shard`` (FSDP2) has sharded.

`fsdp_reduce_scatter` compresses the reduce-scatter of gradients over the ranks that share a model,
`fsdp_hook` the average between machines that each hold a sharded model. Both may be used together.
"""

import torch.distributed.fsdp

from gradcomp_torch.compat import require

try:
    from torch_compressors.fsdp.between import FSDPCompression, fsdp_hook
    from torch_compressors.fsdp.scatter import ReduceScatterCompression, fsdp_reduce_scatter
except ImportError:
    require(torch.distributed.fsdp, "FSDPModule", "2.6", "torch_compressors.fsdp")
    raise

__all__ = [
    "FSDPCompression",
    "ReduceScatterCompression",
    "fsdp_hook",
    "fsdp_reduce_scatter",
]
