"""Trains and saves a checkpoint every 5 steps; resumes if there is one.

  python -m workers.checkpoints ENGINE FOLDER STEPS KILL

Rank 1 is killed in step KILL; 0: never. Rank 0 prints the step it begins with. At the end every rank
writes its parameters and its state to FOLDER/end-RANK.pt.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from workers.dying import layers

SPEC = "residual|topk(ratio=0.05)"


class OnHorovod:
    """Stock Horovod."""

    def __init__(self, model: torch.nn.Module) -> None:
        import horovod.torch as hvd

        from horovod_compressors.torch import Compression

        hvd.init()
        self.rank = hvd.rank()
        self.compression: Any = Compression(SPEC, model.named_parameters())
        self.model = model
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            named_parameters=model.named_parameters(),
            compression=self.compression,
        )


class OnDDP:
    """DistributedDataParallel."""

    def __init__(self, model: torch.nn.Module) -> None:
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from torch_compressors import ddp_hook

        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(model)
        self.compression, hook = ddp_hook(SPEC, self.model)
        self.model.register_comm_hook(self.compression, hook)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class OnBytePS:
    """Stock BytePS."""

    def __init__(self, model: torch.nn.Module) -> None:
        import byteps.torch as bps

        from byteps_compressors.torch import DistributedOptimizer

        bps.init()
        self.rank = bps.rank()
        self.model = model
        self.optimizer = DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), SPEC
        )
        self.compression: Any = self.optimizer.compression


ENGINES: dict[str, Callable[[torch.nn.Module], Any]] = {
    "horovod": OnHorovod,
    "ddp": OnDDP,
    "byteps": OnBytePS,
}


def main(engine: str, folder: Path, steps: int, kill: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = layers()
    job = ENGINES[engine](model)
    begin = 0
    if (folder / "state").is_dir():
        begin = job.compression.load(folder / "state")
        model.load_state_dict(torch.load(folder / f"model-{begin}.pt", weights_only=True))
    if job.rank == 0:
        print(f"begins with step {begin}", flush=True)
    for step in range(begin, steps):
        if job.rank == 1 and step == kill > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.manual_seed(1000 * step + job.rank)
        job.model(torch.randn(4, 80)).square().mean().backward()
        job.optimizer.step()
        job.optimizer.zero_grad()
        if (step + 1) % 5 == 0:
            if job.rank == 0:
                torch.save(model.state_dict(), folder / f"model-{step + 1}.pt")
            job.compression.save(folder / "state", step + 1, keep=2)
    end = {"model": model.state_dict(), "state": job.compression.state_dict()}
    torch.save(end, folder / f"end-{job.rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
