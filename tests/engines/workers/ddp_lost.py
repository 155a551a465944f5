"""Three ranks train in DDP until rank RANK ends, or stops, in the backward pass of step 5.

python -m workers.ddp_lost kill|stop SPEC RANK
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workers.ddp_dying import train
from workers.dying import layers

from torch_compressors import ddp_hook, init_process_group


def main(way: str, spec: str, lost: str) -> None:
    torch.set_num_threads(1)
    # The launcher ends all ranks when one has failed; each of them shall end with its own message.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    init_process_group()
    model = DistributedDataParallel(layers(), bucket_cap_mb=0.01)
    state, hook = ddp_hook(spec, model, timeout=timedelta(seconds=5))
    model.register_comm_hook(state, hook)

    def end(grad: torch.Tensor) -> None:
        os.kill(os.getpid(), signal.SIGKILL if way == "kill" else signal.SIGSTOP)

    train(model, end if dist.get_rank() == int(lost) else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
