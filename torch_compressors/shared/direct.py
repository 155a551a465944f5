"""Messages in the memory of a device, for engines that read them there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from torch_compressors.shared.staging import Staging

__all__ = ["DeviceMessage"]


@dataclass(frozen=True)
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

    def behind(self) -> AbstractContextManager[object]:
        """Make the side stream the current one: what is launched there comes after the message."""
        return self.staging.current()
