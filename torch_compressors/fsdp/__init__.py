"""Compression for models that ``fully_shard`` (FSDP2) has sharded.

`fsdp_reduce_scatter` compresses the reduce-scatter of gradients over the ranks that share a model,
`fsdp_hook` the average between machines that each hold a sharded model. Both may be used together.
"""

from torch_compressors.fsdp.between import FSDPCompression, fsdp_hook
from torch_compressors.fsdp.scatter import ReduceScatterCompression, fsdp_reduce_scatter

__all__ = [
    "FSDPCompression",
    "ReduceScatterCompression",
    "fsdp_hook",
    "fsdp_reduce_scatter",
]
