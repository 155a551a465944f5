"""Compression on torch.distributed: hooks of DDP and FSDP, local steps, and training by gossip.

Also `DGCSGD`, `Dion` and `DeMo`, optimizers for all adapters of PyTorch. Modules are imported at the first
use of a name, because the adapters of other engines need few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradcomp.errors import missing_package

try:
    import torch  # noqa: F401 - every module here needs it
except ModuleNotFoundError as error:
    raise missing_package(error) from None

if TYPE_CHECKING:
    from torch_compressors.ddp import DDPCompression, ddp_hook
    from torch_compressors.elastic import ElasticOuterStep
    from torch_compressors.gossip import AsyncGossipDataParallel, GossipDataParallel
    from torch_compressors.gpu.found import device_array
    from torch_compressors.launch import init_process_group
    from torch_compressors.outer import OuterStep
    from torch_compressors.shared.demo import DeMo
    from torch_compressors.shared.dgc_sgd import DGCSGD
    from torch_compressors.shared.dion import Dion, dion_groups

__all__ = [
    "DGCSGD",
    "AsyncGossipDataParallel",
    "DDPCompression",
    "DeMo",
    "Dion",
    "ElasticOuterStep",
    "GossipDataParallel",
    "OuterStep",
    "ddp_hook",
    "device_array",
    "dion_groups",
    "init_process_group",
]

_MODULES = {
    "DGCSGD": "shared.dgc_sgd",
    "AsyncGossipDataParallel": "gossip",
    "DDPCompression": "ddp",
    "DeMo": "shared.demo",
    "Dion": "shared.dion",
    "ElasticOuterStep": "elastic",
    "GossipDataParallel": "gossip",
    "OuterStep": "outer",
    "ddp_hook": "ddp",
    "device_array": "gpu.found",
    "dion_groups": "shared.dion",
    "init_process_group": "launch",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
