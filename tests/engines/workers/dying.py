"""Trains until rank 1 ends in the backward pass of step 5.

python -m workers.dying kill|raise|stop|late

A ``stop`` is a SIGSTOP; a ``late`` rank comes to ``hvd.init()`` after 60 seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import torch


def layers() -> torch.nn.Sequential:
    """A model; when its middle layer's gradients come, the last layer's are already being sent."""
    return torch.nn.Sequential(*(torch.nn.Linear(80, 80) for _ in range(3)))


def make_end(way: str) -> Callable[[torch.Tensor], None]:
    """A hook of a gradient."""

    def end(grad: torch.Tensor) -> None:
        print("the end of rank 1", flush=True)
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        raise ArithmeticError("raised in the backward pass")

    return end


def main(way: str) -> None:
    # Workers of other engines import the functions above where no Horovod is.
    import horovod.torch as hvd

    from horovod_compressors.torch import Compression

    torch.set_num_threads(1)
    if way == "late" and os.environ["HOROVOD_RANK"] == "1":
        time.sleep(60)
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
