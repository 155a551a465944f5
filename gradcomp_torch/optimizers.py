"""Checks that optimizer and compression fit each other."""

from __future__ import annotations

import torch

from gradcomp import Config
from gradcomp.errors import ConfigError
from gradcomp_torch.dgc_sgd import DGCSGD
from gradcomp_torch.dion import Dion

__all__ = ["check_optimizer", "check_optional"]


def check_optimizer(config: Config, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that does not fit the compression.

    Either it applies the momentum a second time, not at all, or another one; or only one of both
    gives or takes finished steps.

    Raises:
        ConfigError: the optimizer does not fit the configuration; the message names both.
    """
    _check_dion(config, optimizer)
    if isinstance(optimizer, DGCSGD):
        for group in optimizer.param_groups:
            config.check_dgc_sgd(group, "torch.optim.SGD")
        return
    memory = config.momentum_correction
    if memory is None:
        return
    for group in optimizer.param_groups:
        for key in ("momentum", "betas"):
            if group.get(key):
                raise ConfigError(
                    f"{type(optimizer).__name__} has {key}={group[key]}, and '{memory.name}' "
                    "applies the momentum already: use torch_compressors.DGCSGD, or an "
                    "optimizer without momentum"
                )


def check_optional(config: Config, optimizer: torch.optim.Optimizer | None, function: str) -> None:
    """As `check_optimizer`; ``optimizer`` may be None if neither momentum nor steps need it.

    Args:
        function: name of the function that has the argument ``optimizer``, for the message.

    Raises:
        ConfigError: the optimizer is missing, or does not fit.
    """
    if optimizer is not None:
        check_optimizer(config, optimizer)
        return
    config.check_averages(
        f"gives finished steps: pass optimizer=..., a torch_compressors.Dion or DeMo, to {function}"
    )
    if config.momentum_correction is not None:
        raise ConfigError(
            f"'{config.compress.default}' applies the optimizer's momentum: pass optimizer=..., a "
            f"torch_compressors.DGCSGD or an optimizer without momentum, to {function}"
        )


def _check_dion(config: Config, optimizer: torch.optim.Optimizer) -> None:
    name = type(optimizer).__name__
    if not isinstance(optimizer, Dion):
        config.check_averages(
            f"gives finished steps, and {name} takes them for averages: use torch_compressors.Dion or DeMo"
        )
    elif config.step_algorithm is None:
        raise ConfigError(
            f"{name} applies finished steps, and '{config.compress.default}' gives averages: use "
            "another optimizer, or a spec such as dion(rank_fraction=0.25), dion2(fraction=0.25) or "
            "demo(k=32)"
        )
