"""Runs a training script with gradient compression, without editing it.

``horovodrun -np 2 python -m horovod_compressors.run --compression SPEC train.py --epochs 3`` (or
``-m pkg.train --epochs 3``) replaces the compression of every ``hvd.DistributedOptimizer`` and
``hvd.DistributedGradientTape`` that the script makes. With ``--outer H``, an optimizer of PyTorch and
``fit`` of Keras make outer steps instead; docs/outer.md.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from gradcomp import Config
from gradcomp.adapter_api import Unedited, run_unedited

__all__ = ["main"]

# Horovod's modules, and our modules with the function `patch` for each.
_PATCHES = {
    "horovod.torch": "horovod_compressors.torch.patch",
    "horovod.tensorflow": "horovod_compressors.tensorflow.patch",
    "horovod.tensorflow.keras": "horovod_compressors.tensorflow.patch",
}

_LAUNCHER = "horovod.runner"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; see `run_unedited`."""
    return run_unedited(
        argv,
        "horovod_compressors",
        "hvd.DistributedOptimizer or hvd.DistributedGradientTape",
        {**dict.fromkeys(_PATCHES, _patch), _LAUNCHER: _warn_of_launches},
        _is_first_rank,
        _prepare,
        outer=True,
    )


def _prepare(config: Config) -> None:
    if config.compress.two_level:  # for new process sets; the script calls hvd.init() later
        os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")


def _patch(module: ModuleType, run: Unedited) -> None:
    """Replace compression in a module of Horovod."""
    ours = importlib.import_module(_PATCHES[module.__name__])
    ours.patch(module, run)


def _warn_of_launches(module: Any, run: Unedited) -> None:
    """Make ``horovod.run`` say, before it starts a job, that the job's processes are out of reach."""
    stock = module.run

    @functools.wraps(stock)
    def launch(*args: Any, **kwargs: Any) -> Any:
        run.say_once(
            "horovod.run starts processes that python -m horovod_compressors.run does not reach, so "
            "nothing is compressed in them: start the ranks with horovodrun -np N python -m "
            "horovod_compressors.run ..., or use Compression.from_env() in the function"
        )
        return stock(*args, **kwargs)

    module.run = launch


def _is_first_rank() -> bool:
    """Whether this is rank 0; also True if Horovod was never initialized."""
    modules: list[Any] = [sys.modules[name] for name in _PATCHES if name in sys.modules]
    ranks = [module.rank() for module in modules if module.is_initialized()]
    return not ranks or 0 in ranks


if __name__ == "__main__":
    sys.exit(main())
