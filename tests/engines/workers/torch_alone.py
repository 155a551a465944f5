"""The cases of `ddp`, `outer` and `fsdp` that need PyTorch alone, in a job that cannot import Horovod."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.modules["horovod"] = None  # as if it were not installed

import torch.distributed.fsdp
from workers import ddp, harness, outer

cases = {**ddp.cases, **outer.cases}
stock = getattr(torch.distributed.fsdp, "FSDPModule", None)
if hasattr(stock, "set_custom_reduce_scatter"):  # not in PyTorch 2.8
    from workers import fsdp

    cases |= fsdp.cases

if __name__ == "__main__":
    harness.main(sys.argv[1], sys.argv[2], sys.argv[3:])
