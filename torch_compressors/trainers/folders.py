"""The state of a compression inside the folder of a trainer's checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path

import torch.distributed as dist

from torch_compressors.ddp import DDPCompression
from torch_compressors.gloo.gather import gather_numbers

__all__ = ["load_from", "save_to"]

_log = logging.getLogger(__name__)


def save_to(state: DDPCompression, folder: Path) -> None:
    """Write a file for each rank; every rank calls it.

    Args:
        folder: of this state alone. An earlier state in it is replaced, as trainers replace their
            files, hence always the same step.

    Raises:
        StateError: on all ranks, if any could not write its file.
    """
    state.save(folder, 0, keep=1)


def load_from(state: DDPCompression, folder: Path, group: dist.ProcessGroup) -> None:
    """Continue from `save_to`; every rank calls it. On another number of ranks, see `Pipeline`.

    A checkpoint without any state of compression, such as that of an uncompressed run, leaves the
    state as it is, with a warning.

    Raises:
        StateError: on all ranks, if only some have a state, or one is damaged.
    """
    if any(gather_numbers(int(folder.is_dir()), group)):
        state.load(folder)
    elif group.rank() == 0:
        _log.warning(
            "gradcomp: the checkpoint has no state of compression, as there is no %s: compression "
            "starts again, with residuals of zero",
            folder,
        )
