"""Runs a training script with gradient compression, without editing it.

``python -m byteps_compressors.launch -- python -m byteps_compressors.run --compression SPEC train.py
--epochs 3`` (or ``-m pkg.train --epochs 3``) makes every ``bps.DistributedOptimizer`` of the script
compress. Servers must be started with ``python -m byteps_compressors.server``, as the launcher does.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from gradcomp.adapter_api import Unedited, run_unedited

__all__ = ["main"]

COMPRESSED = "bps.DistributedOptimizer"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; see `run_unedited`."""
    patches = {"byteps.torch": _patch_optimizer, "byteps.torch.parallel": _patch_ddp}
    return run_unedited(argv, "byteps_compressors", COMPRESSED, patches, _is_first_rank)


def _is_first_rank() -> bool:
    """Whether this is worker 0; from the environment, as BytePS has ranks before ``bps.init()``."""
    names = ("DMLC_WORKER_ID", "BYTEPS_LOCAL_RANK")
    return all(os.environ.get(name, "0") == "0" for name in names)


def _patch_optimizer(module: Any, run: Unedited) -> None:
    """Replace ``DistributedOptimizer`` of BytePS' module."""
    ours = importlib.import_module("byteps_compressors.torch")  # it imports BytePS' module itself
    stock = module.DistributedOptimizer

    @functools.wraps(stock)
    def distributed_optimizer(
        optimizer: Any,
        named_parameters: Any = None,
        compression: Any = module.Compression.none,
        backward_passes_per_step: int = 1,
    ) -> Any:
        named = list(named_parameters or ())
        if not named:  # the names that the stock optimizer gives to the parameters of one group
            of_groups = [
                parameter for group in optimizer.param_groups for parameter in group["params"]
            ]
            named = [(f"push_pull.noname.{i}", parameter) for i, parameter in enumerate(of_groups)]
        compressed = ours.DistributedOptimizer(
            optimizer, named, run.config, backward_passes_per_step
        )
        before = None if compression is module.Compression.none else compression
        run.replaced(f"{COMPRESSED} of {len(named)} parameters", before)
        return compressed

    module.DistributedOptimizer = distributed_optimizer


def _patch_ddp(module: Any, run: Unedited) -> None:
    """Make BytePS' DDP say that it is not compressed."""
    model_class = module.DistributedDataParallel
    stock = model_class.__init__

    @functools.wraps(stock)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        run.say_once(
            "the gradients of byteps.torch.parallel.DistributedDataParallel are not compressed, as "
            f"this launcher compresses {COMPRESSED} alone: use that in the script"
        )
        stock(self, *args, **kwargs)

    model_class.__init__ = initialize


if __name__ == "__main__":
    sys.exit(main())
