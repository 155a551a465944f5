"""All-reduces that travel as one, over a process group of Gloo."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import torch
import torch.distributed as dist

from gradcomp.adapter_api import AllReduce

__all__ = ["FUSED_BYTES", "FusedSum", "Summand"]

FUSED_BYTES = 4 * 2**20
"""All-reduces are launched together when they reach this size."""


@dataclass
class FusedSum:
    """Arrays of one dtype that are all-reduced together."""

    parts: list[torch.Tensor] = field(default_factory=list)
    first: str = ""
    numel: int = 0
    nbytes: int = 0
    alone: bool = False
    ranks: int = 0
    factor: float = 1.0  # of the numbers before the sum
    together: torch.Tensor = field(init=False)  # made by `launch`
    work: dist.Work | None = None
    answered: Callable[[str], AbstractContextManager[None]] | None = None

    def add(self, request: AllReduce) -> Summand:
        """Add an array before `launch`."""
        part = torch.from_numpy(request.array).reshape(-1)
        self.alone = request.overwrite and not self.parts
        summand = Summand(self, self.numel, request)
        self.parts.append(part)
        self.first = self.first or request.name
        self.numel += part.numel()
        self.nbytes += request.nbytes
        return summand

    def launch(
        self, group: dist.ProcessGroup, answered: Callable[[str], AbstractContextManager[None]]
    ) -> dist.Work:
        """Start the all-reduce.

        Args:
            group: the ranks that take part.
            answered: of a request's name: a context that names lost ranks.
        """
        # A copy, if a round may still read the array.
        self.together = self.parts[0] if self.alone else torch.cat(self.parts)
        self.ranks = group.size()
        self.factor = AllReduce.headroom(self.together.dtype, self.ranks)
        if self.factor != 1:
            self.together *= torch.tensor(self.factor, dtype=self.together.dtype, device="cpu")
        self.parts.clear()
        self.answered = answered
        with answered(self.first):
            self.work = group.allreduce([self.together])
        return self.work

    def average(self, summand: Summand) -> npt.NDArray[Any]:
        """Wait for the all-reduce; returns the average of one of the arrays."""
        assert self.work is not None  # launched by the engine
        assert self.answered is not None
        if self.ranks:
            with self.answered(self.first):
                self.work.wait()
            # In the arrays' own dtype, as the loopback does.
            divisor = self.factor * self.ranks
            self.together *= torch.tensor(1.0 / divisor, dtype=self.together.dtype, device="cpu")
            self.ranks = 0
        shape = summand.request.array.shape
        flat = self.together[summand.begin : summand.begin + summand.request.array.size]
        average: npt.NDArray[Any] = flat.numpy().reshape(shape)
        return average


@dataclass(frozen=True)
class Summand:
    """An all-reduce request, and the position of its first element in the fused array."""

    fused: FusedSum
    begin: int
    request: AllReduce
