"""Outer steps in unchanged scripts: an optimizer instead of ``hvd.DistributedOptimizer``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch.optimizer import DistributedOptimizer

from gradcomp.errors import ConfigError
from horovod_compressors.torch.outer import OuterStep

__all__ = ["check_outer", "outer_step_of", "with_outer_steps"]


def check_outer(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of ``hvd.DistributedOptimizer`` that outer steps cannot keep.

    Raises:
        ConfigError: ``op`` is not Average, or ``gradient_predivide_factor`` is not 1.
    """
    if arguments["op"] != hvd.Average:
        raise ConfigError(
            f"the op of hvd.DistributedOptimizer is {arguments['op']}; with --outer it must be "
            "hvd.Average"
        )
    if arguments["gradient_predivide_factor"] != 1.0:
        raise ConfigError(
            "gradient_predivide_factor of hvd.DistributedOptimizer is "
            f"{arguments['gradient_predivide_factor']}; with --outer it must be 1"
        )


def with_outer_steps(
    optimizer: torch.optim.Optimizer, make: Callable[[], OuterStep]
) -> torch.optim.Optimizer:
    """The optimizer itself; its ``step()`` now also counts steps and averages the ranks' changes.

    It has the methods of ``hvd.DistributedOptimizer``, which have nothing left to do.

    Args:
        make: called at the first step, after the script has loaded and broadcast its model.
    """
    inner = type(optimizer)
    # Scripts, and hvd.broadcast_optimizer_state, look for this module.
    members = {"__module__": DistributedOptimizer.__module__, **_METHODS}
    changed: Any = optimizer
    changed._outer = functools.cache(make)
    changed.__class__ = type(inner.__name__, (inner,), members)
    return optimizer


def outer_step_of(optimizer: torch.optim.Optimizer) -> OuterStep | None:
    """The outer steps of an optimizer of `with_outer_steps`, begun if they were not."""
    make = getattr(optimizer, "_outer", None)
    return None if make is None else make()


def _step(self: Any, closure: Any = None) -> Any:
    outer: OuterStep = self._outer()
    loss = super(type(self), self).step(closure)
    outer.step()
    return loss


_METHODS = {
    "step": _step,
    "synchronize": lambda self: None,
    "skip_synchronize": lambda self: contextlib.nullcontext(),
    "set_backward_passes_per_step": lambda self, passes: None,
}
