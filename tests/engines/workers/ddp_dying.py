"""Trains in DDP until rank 1 ends in the backward pass of step 5.

  python -m workers.ddp_dying WAY

It ends by a ``kill``, by a ``raise``, or is ``gone``: killed before the other one begins that step.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workers.dying import layers, make_end

from torch_compressors import ddp_hook


def train(
    model: DistributedDataParallel,
    end: Callable[[torch.Tensor], None] | None,
    late: bool = False,
) -> None:
    """Train until this rank ends in step 5, or another one has ended.

    Args:
        end: called in the backward pass of step 5; None: another rank ends.
        late: begin step 5 when the other rank has ended.
    """
    for step in range(1000):
        if step == 5 and end is not None:
            model.module[1].weight.register_hook(end)
        elif step == 5 and late:
            time.sleep(2)
        model(torch.randn(4, 80)).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
        model.zero_grad()


def main(way: str) -> None:
    torch.set_num_threads(1)
    # When rank 1 has ended, torchrun sends the other rank a signal to end, too. The other rank must
    # end by itself instead, with a message, however late it gets a processor.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(layers(), bucket_cap_mb=0.01)
    model.register_comm_hook(*ddp_hook("residual|topk(ratio=0.01)", model))
    lost = dist.get_rank() == 1
    train(model, make_end("kill" if way == "gone" else way) if lost else None, way == "gone")


if __name__ == "__main__":
    main(sys.argv[1])
