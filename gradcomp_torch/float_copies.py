"""Gradients of a device as kernels read them: contiguous float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gradcomp_torch.compat import foreach_copy_

__all__ = ["FloatCopies"]


class FloatCopies:
    """Float32 copies of gradients with other dtypes or layouts, in the same memory in each step.

    Launches on memory that stays where it is are replayed (gpu/graphs.py).
    """

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def of(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Contiguous float32 gradients themselves, and copies of the others.

        The current stream copies. Nothing may read a copy of the last step any more.

        Args:
            gradients: of one device, by name.
        """
        floats = dict(gradients)
        for name, gradient in gradients.items():
            if gradient.dtype == torch.float32 and gradient.is_contiguous():
                continue
            kept = self._kept.get(name)
            if kept is None or (kept.shape, kept.device) != (gradient.shape, gradient.device):
                kept = torch.empty(gradient.shape, dtype=torch.float32, device=gradient.device)
                self._kept[name] = kept
            floats[name] = kept
        copied = [name for name in gradients if floats[name] is not gradients[name]]
        if copied:
            foreach_copy_([floats[name] for name in copied], [gradients[name] for name in copied])
        return floats
