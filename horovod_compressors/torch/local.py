"""Local steps in unchanged scripts: an optimizer in place of ``hvd.DistributedOptimizer``."""

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

__all__ = ["check_local", "with_local_steps"]


def check_local(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of ``hvd.DistributedOptimizer`` that local steps cannot keep.

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


def with_local_steps(
    optimizer: torch.optim.Optimizer, make: Callable[[], OuterStep]
) -> torch.optim.Optimizer:
    """The optimizer itself, whose ``step()`` now also counts steps and averages the ranks' changes.

    It has the methods of ``hvd.DistributedOptimizer``, which have nothing left to do. A step that a
    GradScaler skips is counted, too: each rank may skip others.

    Args:
        make: called at the first step, after the script has loaded and broadcast its model.
    """
    inner = type(optimizer)
    # Scripts, and hvd.broadcast_optimizer_state, look for this module.
    members = {"__module__": DistributedOptimizer.__module__, **_METHODS}
    changed: Any = optimizer
    changed._outer = functools.cache(make)
    changed.__class__ = type(inner.__name__, (inner,), members)
    if not getattr(torch.amp.GradScaler.step, "counts_local_steps", False):
        torch.amp.GradScaler.step = _counting(torch.amp.GradScaler.step)  # type: ignore[method-assign]
    return optimizer


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


def _counting(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        make = getattr(optimizer, "_outer", None)
        before = make().inner_steps if make is not None else 0
        result = stock(self, optimizer, *args, **kwargs)
        if make is not None and make().inner_steps == before:
            make().step()
        return result

    step.counts_local_steps = True  # type: ignore[attr-defined]
    return step
