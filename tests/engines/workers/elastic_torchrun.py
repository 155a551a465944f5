"""A worker of an elastic job of torchrun, which trains by DDP and by gossip, and logs each step.

Argument: a folder. It has a file ``last`` with the number of steps, and gets checkpoints and rows.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.pipelines import configured, rules_of
from torch_compressors import GossipDataParallel, ddp_hook, init_process_group

SPECS = {
    "top": "residual|topk(ratio=0.02)",
    "low": "powersgd(rank=2,start_step=2,variant=paper)",
    "some": "residual|randomk(ratio=0.1)",
}
SHAPE = (72, 64)
EVERY = 10
"""Steps from one checkpoint to the next."""
PAUSE = 0.03


class Sums(nn.Module):
    """A model that takes its gradients as arguments of its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(SHAPE)) for name in [*SPECS, "bias"]}
        )

    def forward(self, grads: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack(
            [(self.weights[name] * grad).sum() for name, grad in grads.items()]
        ).sum()


def gradients(step: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng([step, dist.get_rank(), dist.get_world_size()])
    names = [*SPECS, "bias"]
    return {name: torch.from_numpy(rng.normal(size=SHAPE).astype(np.float32)) for name in names}


def total(tensor: torch.Tensor) -> float:
    return float(tensor.detach().double().sum())


def digest(tensors: Any) -> str:
    data = b"".join(one.detach().numpy().tobytes() for one in tensors)
    return blake2b(data, digest_size=8).hexdigest()


def residual_of(compression: Any) -> torch.Tensor:
    residual = compression.state_dict()["residual"].get("weights.top")
    return torch.zeros(SHAPE) if residual is None else residual


def values_of(model: nn.Module) -> list[float]:
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]).tolist()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    init_process_group(timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    began = torch.tensor([time.time()], dtype=torch.float64)
    dist.broadcast(began, 0)
    module = Sums()
    model = DistributedDataParallel(module)
    config = configured("identity", rules=rules_of(SPECS, "weights.{}"))
    compression, hook = ddp_hook(config, model)
    model.register_comm_hook(compression, hook)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.5)
    gossip = GossipDataParallel(nn.Linear(6, 5), algorithm="choco", codec="topk(ratio=0.2)")
    gossip_optimizer = gossip.attach(torch.optim.SGD(gossip.parameters(), lr=0.05))

    # The compression is saved last: its newest step is complete in all of them.
    first = compression.load(folder / "compression", missing_ok=True)
    if first:
        gossip.load(folder / "gossip", first)
        saved = torch.load(folder / f"training-{first}.pt", weights_only=True)
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    log = (folder / f"rows-{os.getpid()}.jsonl").open("a", buffering=1, encoding="utf-8")
    about = {
        "life": began.item(),
        "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "rank": rank,
        "size": size,
        "pid": os.getpid(),
        "first": first,
    }
    for step in itertools.count(first):
        last = torch.tensor([int((folder / "last").read_text())])
        dist.broadcast(last, 0)  # ranks may read it at two times
        if step >= last:
            break
        time.sleep(PAUSE)
        before, start = residual_of(compression), total(module.weights["top"])
        velocity = optimizer.state.get(module.weights["top"], {}).get("momentum_buffer")
        rolling = 0.0 if velocity is None else 0.5 * total(velocity)
        gossip_before = values_of(gossip)
        grads = gradients(step)
        optimizer.zero_grad()
        model(grads).backward()
        optimizer.step()
        generator = torch.Generator().manual_seed(100 * step + rank)
        gossip_optimizer.zero_grad()
        gossip(torch.randn(5, 6, generator=generator)).square().sum().backward()
        gossip_optimizer.step()
        after = residual_of(compression)
        row = {
            **about,
            "time": time.time(),
            "step": step + 1,
            "digest": digest(module.parameters()),
            "applied": start - total(module.weights["top"]) - rolling,
            "given": total(grads["top"]),
            "before": total(before),
            "before_digest": digest([before]),
            "after": total(after),
            "after_digest": digest([after]),
            "gossip_before": gossip_before,
            "gossip_after": values_of(gossip),
        }
        print(json.dumps(row), file=log)
        if (step + 1) % EVERY == 0:
            gossip.save(folder / "gossip", step + 1)
            if rank == 0:
                state = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, folder / f"training-{step + 1}.pt")
            compression.save(folder / "compression", step + 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
