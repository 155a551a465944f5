"""Controls of a compression that reads the loss scale of a ``GradScaler``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gradcomp_torch.state import TensorControls

__all__ = ["ScalerControls"]


class ScalerControls(TensorControls):
    """Controls with `follow_scaler`; a subclass calls `_follow_scale` at the beginning of each step."""

    _scaler: torch.amp.GradScaler | None = None

    def follow_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """Read the loss scale from ``scaler`` before each step, instead of `set_loss_scale`."""
        self._scaler = scaler

    def _follow_scale(self) -> None:
        if self._scaler is not None:
            self.set_loss_scale(self._scaler.get_scale())

    def state_dict(self) -> dict[str, Any]:
        """See `TensorControls.state_dict`."""
        self._follow_scale()
        return super().state_dict()

    def _state_to_save(self) -> Mapping[str, Any]:
        self._follow_scale()
        return super()._state_to_save()
