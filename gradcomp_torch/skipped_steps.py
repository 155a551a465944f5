"""Steps that a GradScaler skips, which may differ by rank, still count as local steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = ["LocalSteps", "count_skipped_steps"]


class LocalSteps(Protocol):
    """Counts the steps of an optimizer, and makes outer steps at times: an `OuterStep`, for example."""

    @property
    def inner_steps(self) -> int:
        """Number of steps so far."""

    def step(self) -> object:
        """Count a step."""


def count_skipped_steps(of: Callable[[torch.optim.Optimizer], LocalSteps | None]) -> None:
    """Make ``GradScaler.step`` count the steps that it skips.

    Args:
        of: the local steps of an optimizer, which counts the steps that it makes; None if it has none.
    """
    stock = torch.amp.GradScaler.step

    @functools.wraps(stock)
    def step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        local = of(optimizer)
        before = 0 if local is None else local.inner_steps
        result = stock(self, optimizer, *args, **kwargs)
        if local is not None and local.inner_steps == before:
            local.step()
        return result

    torch.amp.GradScaler.step = step  # type: ignore[method-assign]
