"""A worker that runs until it is ended from outside."""

import byteps.torch as bps
import torch
from byteps.torch import ops

from byteps_compressors.torch import attach

bps.init()
attach([("w", torch.empty(100_000))], "residual|topk(ratio=0.01)")
grad = torch.randn(100_000)
step = 0
while True:
    ops.synchronize(ops.push_pull_async_inplace(grad.clone(), name="Gradient.w"))
    step += 1
    if step == 3:
        print("under way", flush=True)
