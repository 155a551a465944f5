"""A worker that fails while the other one waits for it; or ends at once, with some exit code."""

import sys

import byteps.torch as bps
import torch
from byteps.torch import ops

from byteps_compressors.torch import attach

if sys.argv[1:]:
    sys.exit(int(sys.argv[1]))
bps.init()
attach([("w", torch.empty(100_000))], "topk(ratio=0.01)")
if bps.rank() == 1:
    raise ValueError("worker 1 gives up")
ops.synchronize(ops.push_pull_async_inplace(torch.zeros(100_000), name="Gradient.w"))
