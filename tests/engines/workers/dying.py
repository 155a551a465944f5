"""Trains until rank 1 ends in the backward pass of step 5: by a ``kill``, or by a ``raise``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import horovod.torch as hvd
import torch

from horovod_compressors.torch import Compression


def layers() -> torch.nn.Sequential:
    """A model; when its middle layer's gradients come, the last layer's are already being sent."""
    return torch.nn.Sequential(*(torch.nn.Linear(80, 80) for _ in range(3)))


def make_end(way: str) -> Callable[[torch.Tensor], None]:
    """A hook of a gradient."""

    def end(grad: torch.Tensor) -> None:
        print("the end of rank 1", flush=True)
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ArithmeticError("raised in the backward pass")

    return end


def main(way: str) -> None:
    torch.set_num_threads(1)
    hvd.init()
    model = layers()
    opt = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=Compression("residual|topk(ratio=0.01)", model.named_parameters()),
    )

    for step in range(1000):
        if hvd.rank() == 1 and step == 5:
            model[1].weight.register_hook(make_end(way))
        model(torch.randn(4, 80)).square().mean().backward()
        opt.step()
        opt.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
