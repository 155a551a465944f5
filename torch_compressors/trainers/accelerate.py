"""Compression in Hugging Face Accelerate.

::

    from torch_compressors.trainers.accelerate import compress_model

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    state = compress_model(accelerator, model, "residual|adaptive(rate=1)")
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from gradcomp import Config
from gradcomp.errors import missing_package

try:
    from accelerate import Accelerator
except ModuleNotFoundError as error:
    raise missing_package(error) from None

from torch_compressors.ddp import DDPCompression
from torch_compressors.trainers.folders import load_from, save_to
from torch_compressors.trainers.wrapped import compressed, unwrapped

__all__ = ["compress_model"]

_models: WeakKeyDictionary[Accelerator, int] = WeakKeyDictionary()
"""Number of each accelerator's compressed models."""


def compress_model(
    accelerator: Accelerator,
    model: Any,
    config: str | Config = "auto",
    optimizer: Any = None,
    timeout: timedelta | None = None,
) -> DDPCompression:
    """Compress the gradients of a prepared model; every rank calls it, after ``prepare``.

    ``accelerator.save_state`` writes the compression's state, a file for each rank, to the folder
    ``gradcomp`` of its checkpoint, and ``accelerator.load_state`` reads it. The second model of an
    accelerator has the folder ``gradcomp_1``, and so on, in the order of the calls. The loss scale is
    read from the accelerator.

    Args:
        accelerator: has prepared the model.
        model: result of ``accelerator.prepare``.
        config, optimizer, timeout: as for `torch_compressors.ddp_hook`.

    Returns:
        The state, see `torch_compressors.ddp_hook`. For schedules by epochs, call its `set_epoch`.

    Raises:
        ConfigError: the model is not a DistributedDataParallel; for others see
            `torch_compressors.ddp_hook`.
    """
    ddp = unwrapped(
        model,
        "pass the model that accelerator.prepare() returned, and start at least two processes, with "
        "torchrun or accelerate launch, without FSDP or DeepSpeed",
    )
    state = compressed(ddp, config, optimizer, accelerator.scaler, timeout)

    number = _models.get(accelerator, 0)
    _models[accelerator] = number + 1
    folder = f"gradcomp_{number}" if number else "gradcomp"

    def save(_: list[Any], _weights: list[Any], directory: str) -> None:
        save_to(state, Path(directory) / folder)

    def load(_: list[Any], directory: str) -> None:
        load_from(state, Path(directory) / folder, ddp.process_group)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return state
