"""Compression on torch.distributed: hooks of DDP and FSDP, outer steps, and training by gossip.

Also `DGCSGD`, `Dion` and `DeMo`, optimizers for all adapters of PyTorch. Modules are imported at the first
use of a name, because the adapters of other engines need few of them.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from gradcomp.errors import missing_package

# Every module here needs PyTorch. It is looked up, not imported: `gradcomp doctor` tries it later.
if importlib.util.find_spec("torch") is None:
    raise missing_package(ModuleNotFoundError("No module named 'torch'", name="torch"))

if TYPE_CHECKING:
    from gradcomp_torch.demo import DeMo
    from gradcomp_torch.dgc_sgd import DGCSGD
    from gradcomp_torch.dion import Dion, dion_groups
    from gradcomp_torch.gpu.device_lookup import device_array
    from torch_compressors.averager import GradientAverager
    from torch_compressors.ddp import DDPCompression, ddp_hook
    from torch_compressors.elastic import ElasticOuterStep
    from torch_compressors.gloo.process_group import init_process_group
    from torch_compressors.gossip import AsyncGossipDataParallel, GossipDataParallel
    from torch_compressors.outer import OuterStep

__all__ = [
    "DGCSGD",
    "AsyncGossipDataParallel",
    "DDPCompression",
    "DeMo",
    "Dion",
    "ElasticOuterStep",
    "GossipDataParallel",
    "GradientAverager",
    "OuterStep",
    "ddp_hook",
    "device_array",
    "dion_groups",
    "init_process_group",
]

_MODULES = {
    "DGCSGD": "gradcomp_torch.dgc_sgd",
    "AsyncGossipDataParallel": "torch_compressors.gossip",
    "DDPCompression": "torch_compressors.ddp",
    "DeMo": "gradcomp_torch.demo",
    "Dion": "gradcomp_torch.dion",
    "ElasticOuterStep": "torch_compressors.elastic",
    "GossipDataParallel": "torch_compressors.gossip",
    "GradientAverager": "torch_compressors.averager",
    "OuterStep": "torch_compressors.outer",
    "ddp_hook": "torch_compressors.ddp",
    "device_array": "gradcomp_torch.gpu.device_lookup",
    "dion_groups": "gradcomp_torch.dion",
    "init_process_group": "torch_compressors.gloo.process_group",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)
