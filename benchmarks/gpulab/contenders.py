"""Ways to average gradients in DDP and FSDP: PyTorch's own, and ours on the GPU and through the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from gradcomp import Config
from torch_compressors import ddp_hook
from torch_compressors.fsdp import fsdp_reduce_scatter

__all__ = ["Contender", "contenders"]

BUCKET_MB = 25.0
ONE_BUCKET_MB = 10000.0


@dataclass(frozen=True)
class Contender:
    """One way.

    Attributes:
        kind: ``none``, ``fp16`` or ``powersgd``, which are PyTorch's hooks, or ``ours``, for DDP; ``sharded``
            by ``fully_shard``, whose reduce-scatter is PyTorch's without a spec.
        spec: of ours.
        device: ``compress.device`` of ours.
    """

    name: str
    kind: str
    spec: str = ""
    device: str = ""

    @property
    def same(self) -> str:
        """Runs with equal parameters: of one spec on the GPU and the host, unless products may differ there."""
        if self.spec.startswith("powersgd") or not self.spec:
            return self.name
        return f"{self.kind} {self.spec}"

    def bucket_mb(self, backend: str) -> float:
        """Size of DDP's buckets: on Gloo, PyTorch's PowerSGD works with a single one only."""
        return ONE_BUCKET_MB if (self.kind, backend) == ("powersgd", "gloo") else BUCKET_MB

    def wrap(self, model: torch.nn.Sequential, backend: str) -> torch.nn.Module:
        """The model as this way trains it."""
        if self.kind == "sharded":
            for layer in model:
                if isinstance(layer, torch.nn.Linear):
                    fully_shard(layer)
            fully_shard(model)
            if self.spec:
                fsdp_reduce_scatter(self._config(), model)
            return model
        wrapped = DistributedDataParallel(model, bucket_cap_mb=self.bucket_mb(backend))
        if self.kind == "fp16":
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif self.kind == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                dist.group.WORLD, matrix_approximation_rank=4, start_powerSGD_iter=2
            )
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif self.kind == "ours":
            wrapped.register_comm_hook(*ddp_hook(self._config(), wrapped))
        return wrapped

    def _config(self) -> Config:
        return Config.from_mapping(
            {"version": 1, "compress": {"default": self.spec, "device": self.device}}
        )


def contenders(ranks: int, backend: str, device: torch.device) -> list[Contender]:
    """All ways that work there: FSDP needs several ranks, and an engine for memory of the device."""
    shards = ranks > 1 and (backend == "nccl" or device.type == "cpu")
    return [*_DDP, *_SHARDED] if shards else [*_DDP]


def _ours(spec: str, kind: str = "ours") -> list[Contender]:
    before = "fully_shard, " if kind == "sharded" else ""
    devices = ("direct", "auto", "host")
    return [Contender(f"{before}{spec}, {where}", kind, spec, where) for where in devices]


_DDP = (
    Contender("no hook", "none"),
    Contender("torch fp16_compress_hook", "fp16"),
    Contender("torch powerSGD_hook, rank 4", "powersgd"),
    *_ours("residual|topk(ratio=0.01)"),
    *_ours("residual|int8"),
    *_ours("fp16"),
    *_ours("powersgd(rank=4,start_step=0)"),
)

_SHARDED = (
    Contender("fully_shard", "sharded"),
    *_ours("residual|topk(ratio=0.01)", "sharded"),
    *_ours("residual|int4", "sharded"),
)
