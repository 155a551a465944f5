"""Trials of torch.distributed and of trainers for ``gradcomp doctor``."""

from __future__ import annotations

import importlib
import tempfile
from importlib.metadata import version
from typing import Any

from gradcomp.errors import NotBuiltError, ProbeError

__all__ = ["accelerate", "distributed", "lightning", "torchft", "transformers"]


def distributed() -> str:
    """Averages on a process group of one rank, and a compressed step of DDP; other back ends are only listed."""
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    if not dist.is_available():
        raise NotBuiltError("torch was built without torch.distributed")
    if not dist.is_gloo_available():
        raise NotBuiltError("torch was built without Gloo")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        tensor = torch.ones(3, dtype=torch.float32, device="cpu")
        dist.all_reduce(tensor)
        gradient = _compressed_step(torch)
        importlib.import_module("gradcomp_torch.compat").destroy_process_group()
    if float(tensor.sum()) != 3 or not torch.allclose(gradient, torch.ones_like(gradient)):
        raise ProbeError("an average is wrong")
    others = ("nccl", "mpi", "ucc", "xccl")
    there = [name for name in others if getattr(dist, f"is_{name}_available", bool)()]
    return f"gloo averages; also built: {', '.join(there) or 'none'}"


def _compressed_step(torch: Any) -> Any:
    """A gradient of ones after a step of DDP on this rank; it uses names of PyTorch that versions do not share."""
    ddp_hook = importlib.import_module("torch_compressors.ddp").ddp_hook
    parallel = importlib.import_module("torch.nn.parallel")
    layer = torch.nn.Linear(64, 80, device="cpu", dtype=torch.float32)
    model = parallel.DistributedDataParallel(layer)
    model.register_comm_hook(*ddp_hook("int8", model))
    model(torch.ones(1, 64, device="cpu", dtype=torch.float32)).sum().backward()
    return model.module.weight.grad


def accelerate() -> str:
    """The imports of Accelerate and its adapter."""
    return _trainer("accelerate", "torch_compressors.trainers.accelerate")


def lightning() -> str:
    """The imports of Lightning and its adapter."""
    return _trainer("lightning", "torch_compressors.trainers.lightning")


def torchft() -> str:
    """The imports of torchft and its adapter."""
    return _trainer("torchft", "torch_compressors.torchft")


def transformers() -> str:
    """The imports of Transformers and its adapter."""
    return _trainer("transformers", "torch_compressors.trainers.transformers")


def _trainer(package: str, adapter: str) -> str:
    importlib.import_module(package)
    importlib.import_module(adapter)
    return f"{package} {version(package)}"
