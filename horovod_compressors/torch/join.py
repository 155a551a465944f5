"""Ranks with different numbers of batches: those without data take part until the last one has ended.

Horovod's own ``hvd.join()`` answers all-reduces with zeros, and no other collective. Here each step of
a rank with data begins with an all-reduce of marks, for which the ranks without data wait.
"""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch

from gradcomp.errors import ConfigError
from horovod_compressors.torch.wait import wait

__all__ = ["Attendance", "check_takes_part", "take_part"]


class Attendance:
    """Marks of the ranks that have data for the next step, with the learning rates of the step.

    Args:
        process_set: the ranks that average together.
    """

    def __init__(self, process_set: Any) -> None:
        self._process_set = process_set
        self._under_way: int | None = None

    def mark(self, optimizer: Any | None) -> None:
        """Tell the ranks without data that a step begins; `settle` ends the exchange.

        Raises:
            ConfigError: ``compress`` was called outside an optimizer.
        """
        if optimizer is None:
            raise ConfigError("uneven=True works in hvd.DistributedOptimizer only")
        self._under_way = self._start(1.0, [group["lr"] for group in optimizer.param_groups])

    def settle(self) -> None:
        """Wait for the exchange of `mark`."""
        if self._under_way is not None:
            number, self._under_way = self._under_way, None
            self._finish(number)

    def wait(self, optimizer: Any) -> list[float] | None:
        """Learning rates of the next step, for a rank without data; None if all ranks have ended."""
        lowest = [-torch.inf] * len(optimizer.param_groups)
        present, *rates = self._finish(self._start(0.0, lowest))
        return rates if present else None

    def _start(self, present: float, rates: list[float]) -> int:
        # The maximum keeps the bits of rates, which are equal on all ranks with data.
        number: int = hvd.allreduce_async(
            torch.tensor([present, *rates], dtype=torch.float64, device="cpu"),
            name=f"gradcomp.attendance.{self._process_set.process_set_id}",
            op=hvd.Max,
            process_set=self._process_set,
        )
        return number

    def _finish(self, number: int) -> list[float]:
        wait(number, self._process_set.ranks)
        marks: list[float] = hvd.synchronize(number).tolist()
        return marks


def check_takes_part(optimizer: Any) -> None:
    """Refuse optimizers with steps that a rank without data cannot make.

    Raises:
        ConfigError: the optimizer averages groups of gradients, or with op=Adasum.
    """
    if getattr(optimizer, "_groups", None) is not None:
        raise ConfigError(
            "uneven=True does not work with groups of hvd.DistributedOptimizer: leave out groups"
        )
    if not hasattr(optimizer, "op"):
        raise ConfigError("uneven=True does not work with op=Adasum: use op=hvd.Average")


def take_part(optimizer: Any, rates: list[float]) -> None:
    """Make a step without data: gradients of zeros, and what the residuals still hold."""
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
