"""The models and optimizers that trainers have wrapped."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gradcomp import Config
from gradcomp.errors import ConfigError
from gradcomp_torch.compat import COMPILED_PART
from torch_compressors.ddp import DDPCompression, ddp_hook

__all__ = ["compressed", "unwrapped"]


def unwrapped(model: Any, remedy: str) -> DistributedDataParallel:
    """The DistributedDataParallel of a trainer's model, which torch.compile may have wrapped.

    Args:
        remedy: for the message of the error.

    Raises:
        ConfigError: the trainer trains in another way.
    """
    inner = getattr(model, COMPILED_PART, model)
    if not isinstance(inner, DistributedDataParallel):
        raise ConfigError(
            f"the trainer's model is a {type(inner).__name__} and not a DistributedDataParallel, so there "
            f"is no exchange of gradients to compress: {remedy}"
        )
    return inner


def compressed(
    model: DistributedDataParallel,
    config: str | Config,
    optimizer: Any = None,
    scaler: torch.amp.GradScaler | None = None,
    timeout: timedelta | None = None,
) -> DDPCompression:
    """The state of a new hook of ``model``.

    Args:
        optimizer: None, or one that Accelerate may have wrapped.
        scaler: gives the loss scale of mixed precision; None without one.
    """
    state, hook = ddp_hook(config, model, getattr(optimizer, "optimizer", optimizer), timeout)
    if scaler is not None:
        state.follow_scaler(scaler)
    model.register_comm_hook(state, hook)
    return state
