"""Worker 0 requests a checkpoint while worker 1 trains on: python -m workers.byteps_asking."""

from __future__ import annotations

import byteps.torch as bps
import torch
from byteps.torch import ops

from byteps_compressors.torch import attach


def main() -> None:
    bps.init()
    weights = torch.ones(100, 100)
    attached = attach([("w", weights)], "residual|sign")
    if bps.rank() == 0:
        attached.state_dict()
    else:
        ops.synchronize(ops.push_pull_async_inplace(weights, name="Gradient.w"))


if __name__ == "__main__":
    main()
