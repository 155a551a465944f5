"""Steps that a GradScaler skips, which may differ by rank, still count as inner steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = ["StepCounter", "count_skipped_steps"]


class StepCounter(Protocol):
    """Counts the steps of an optimizer, and makes outer steps at times: an `OuterStep`, for example."""

    @property
    def inner_steps(self) -> int:
        """Number of steps so far."""

    def step(self) -> object:
        """Count a step."""


def count_skipped_steps(of: Callable[[torch.optim.Optimizer], StepCounter | None]) -> None:
    """Make ``GradScaler.step`` count the steps that it skips.

    Args:
        of: the `OuterStep` of an optimizer, which counts its inner steps; None if it has none.
    """
    stock = torch.amp.GradScaler.step

    @functools.wraps(stock)
    def step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        counter = of(optimizer)
        before = 0 if counter is None else counter.inner_steps
        result = stock(self, optimizer, *args, **kwargs)
        if counter is not None and counter.inner_steps == before:
            counter.step()
        return result

    torch.amp.GradScaler.step = step  # type: ignore[method-assign]
