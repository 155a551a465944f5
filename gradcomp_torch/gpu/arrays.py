"""Arrays of the host that travel to a device together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gradcomp_torch.gpu.bucket import VECTOR_BYTES
from gradcomp_torch.staging import room

__all__ = ["OnDevice"]


class OnDevice(NamedTuple):
    """Arrays in one piece of memory of a device, and their places there.

    Attributes:
        memory: flat uint8.
        begins: of each array, in bytes; multiples of 16.
    """

    memory: torch.Tensor
    begins: list[int]

    @classmethod
    def empty(cls, arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> OnDevice:
        """Memory for arrays."""
        rooms = [-(-array.nbytes // VECTOR_BYTES) * VECTOR_BYTES for array in arrays]
        ends = np.cumsum(rooms)
        memory = torch.empty(int(ends[-1]), dtype=torch.uint8, device=device)
        return cls(memory, (ends - rooms).tolist())

    def fill(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Start one copy of all arrays to the device."""
        host = room(self.memory.numel(), torch.uint8, self.memory.device)
        view = host.numpy()
        for begin, array in zip(self.begins, arrays, strict=True):
            view[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        self.memory.copy_(host, non_blocking=True)

    def part(self, number: int, array: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
        """An array's copy, flat."""
        begin = self.begins[number]
        return self.memory[begin : begin + array.nbytes].view(dtype)
