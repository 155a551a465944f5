"""Runs a training script with gradient compression, without editing it.

``torchrun --nproc-per-node 2 -m torch_compressors.run --compression SPEC train.py --epochs 3`` (or
``-m pkg.train --epochs 3``) registers `ddp_hook` with every ``DistributedDataParallel`` model that
the script makes. With ``--outer H``, the models' optimizers make outer steps instead; docs/outer.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gradcomp.adapter_api import run_unedited
from torch_compressors.unedited import COMPRESSED, PATCHES, check_config, is_first_rank

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; see `run_unedited`."""
    return run_unedited(
        argv,
        "torch_compressors",
        COMPRESSED,
        PATCHES,
        is_first_rank,
        check_config,
        outer=True,
    )


if __name__ == "__main__":
    sys.exit(main())
