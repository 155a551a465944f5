"""Messages in the memory of a device, for engines that read them there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from gradcomp.adapter_api import AllGather, AllReduce, AllToAll, Request
from gradcomp_torch.staging import Staging

__all__ = ["DeviceMessage", "message_of"]


def message_of(request: Request) -> DeviceMessage | None:
    """What a request sends from the memory of a device; None for one from the host."""
    message: Any = None
    if isinstance(request, AllGather):
        message = request.frame
    elif isinstance(request, AllReduce):
        message = request.array
    elif isinstance(request, AllToAll):
        message = request.data
    return message if isinstance(message, DeviceMessage) else None


@dataclass(frozen=True, eq=False)
class DeviceMessage:
    """A message, which a side stream of its device makes.

    Attributes:
        data: flat; uint8, or numbers that are added up.
    """

    data: torch.Tensor
    staging: Staging

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.data.nbytes

    def __getitem__(self, part: slice) -> DeviceMessage:
        """A view of consecutive elements."""
        return DeviceMessage(self.data[part], self.staging)

    def replies(self, data: torch.Tensor, ranks: int) -> list[DeviceMessage]:
        """The messages of all ranks, of one size, in a reply that has one after the other."""
        size = data.numel() // ranks
        return [
            DeviceMessage(data[rank * size : (rank + 1) * size], self.staging)
            for rank in range(ranks)
        ]

    def behind(self) -> AbstractContextManager[object]:
        """Make the side stream the current one: what is launched there comes after the message."""
        return self.staging.current()
