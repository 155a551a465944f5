"""Learning rates of an optimizer of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

__all__ = ["rates_of"]


def rates_of(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]
) -> dict[str, float]:
    """The present rate of each parameter, by its name in ``names``."""
    return {
        names[parameter]: float(group["lr"])
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter in names
    }
