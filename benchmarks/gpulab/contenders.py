"""Ways to average gradients in DDP: PyTorch's own, and ours on the GPU and through the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gradcomp import Config
from torch_compressors import ddp_hook

__all__ = ["CONTENDERS", "Contender"]

BUCKET_MB = 25.0
ONE_BUCKET_MB = 10000.0


@dataclass(frozen=True)
class Contender:
    """One way.

    Attributes:
        kind: ``none``, ``fp16`` or ``powersgd``, which are PyTorch's hooks, or ``ours``.
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
        return self.name if self.spec.startswith("powersgd") else self.spec or self.name

    def bucket_mb(self, backend: str) -> float:
        """Size of DDP's buckets: on Gloo, PyTorch's PowerSGD works with a single one only."""
        return ONE_BUCKET_MB if (self.kind, backend) == ("powersgd", "gloo") else BUCKET_MB

    def register(self, model: DistributedDataParallel) -> None:
        """Give the model this hook."""
        if self.kind == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif self.kind == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                dist.group.WORLD, matrix_approximation_rank=4, start_powerSGD_iter=2
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif self.kind == "ours":
            config = Config.from_mapping(
                {"version": 1, "compress": {"default": self.spec, "device": self.device}}
            )
            model.register_comm_hook(*ddp_hook(config, model))


def _ours(spec: str, *more: str) -> list[Contender]:
    devices = (*more, "auto", "host")
    return [Contender(f"{spec}, {where}", "ours", spec, where) for where in devices]


CONTENDERS = (
    Contender("no hook", "none"),
    Contender("torch fp16_compress_hook", "fp16"),
    Contender("torch powerSGD_hook, rank 4", "powersgd"),
    *_ours("residual|topk(ratio=0.01)", "direct"),
    *_ours("residual|int8", "direct"),
    *_ours("fp16", "direct"),
    *_ours("powersgd(rank=4,start_step=0)", "direct"),
)
