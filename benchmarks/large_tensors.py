"""Steps of one large tensor in Horovod or DDP, whose memory a step should not take from the system.

  horovodrun -np 2 --gloo python benchmarks/large_tensors.py
  torchrun --nproc-per-node=2 benchmarks/large_tensors.py

Rank 0 prints for each spec the median step and its page faults: pages that the system had to find and
clear, of 4 KiB or 2 MiB. The gradient keeps its memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from e2e.model import Layer
from gradcomp import load_config

CASES = (
    ("fp16", "auto"),
    ("fp16", "sra"),
    ("residual|int8", "gather"),
    ("residual|int8", "sra"),
    ("residual|topk(ratio=0.01)", "gather"),
    ("powersgd(rank=4,start_step=0,variant=library)", "auto"),
)
ROWS = 4096
WARMUP = 3

Step = Callable[[], None]


class Model(torch.nn.Module):
    """One matrix, whose gradient is the same in each step."""

    def __init__(self, columns: int, rank: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(ROWS, columns))
        generator = torch.Generator().manual_seed(rank)
        self.fixed = torch.randn(ROWS, columns, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input, a scalar."""
        passed: torch.Tensor = Layer.apply(x, self.weight, self.fixed, 0.0)  # type: ignore[no-untyped-call]
        return passed


def on_horovod() -> tuple[int, Callable[[Any, int, str], Step]]:
    """The rank, and the maker of a step."""
    import horovod.torch as hvd

    from horovod_compressors.torch import Compression

    hvd.init()

    def make(config: Any, columns: int, name: str) -> Step:
        model = Model(columns, hvd.rank())
        named = [(name, model.weight)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([model.weight], 0.0), named, compression=Compression(config, named)
        )

        def step() -> None:
            if model.weight.grad is not None:
                model.weight.grad.zero_()
            model(torch.zeros(1, requires_grad=True)).backward()
            optimizer.synchronize()

        return step

    return hvd.rank(), make


def on_torch() -> tuple[int, Callable[[Any, int, str], Step]]:
    """The rank, and the maker of a step."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from torch_compressors import ddp_hook

    dist.init_process_group("gloo")

    def make(config: Any, columns: int, _: str) -> Step:
        model = DistributedDataParallel(Model(columns, dist.get_rank()))
        state, hook = ddp_hook(config, model, torch.optim.SGD(model.parameters(), 0.0))
        model.register_comm_hook(state, hook)

        def step() -> None:
            model.zero_grad(set_to_none=False)
            model(torch.zeros(1, requires_grad=True)).backward()

        return step

    return dist.get_rank(), make


def main() -> None:
    """Time all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=100 << 20)
    parser.add_argument("--steps", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, make = on_horovod() if "HOROVOD_RANK" in os.environ else on_torch()
    for number, (spec, exchange) in enumerate(CASES):
        settings = [f"compress.default={spec}", f"compress.exchange={exchange}"]
        config = load_config([], ["version=1", *settings])
        step = make(config, options.elements // ROWS, f"weight{number}")
        seconds, faults = [], []
        for _ in range(WARMUP + options.steps):
            before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            step()
            seconds.append(time.perf_counter() - began)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before.ru_minflt)
        if rank == 0:
            median, pages = (statistics.median(values[WARMUP:]) for values in (seconds, faults))
            print(f"{spec}, {exchange}: {1e3 * median:.0f} ms, {pages:.0f} faults", flush=True)


if __name__ == "__main__":
    main()
