"""Gradients of a device as kernels read them: contiguous float32, or 16 bits that kernels convert."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gradcomp.adapter_api import FloatArray
from gradcomp_torch.compat import foreach_copy_
from gradcomp_torch.devices import Halves, TensorDevice, halves_of
from gradcomp_torch.staging import computed_by_now

__all__ = ["FloatCopies", "is_float"]


class FloatCopies:
    """Float32 memory of gradients with other dtypes or layouts: the same in each step.

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
        floats = {
            name: gradient if is_float(gradient) else self._memory(name, gradient)
            for name, gradient in gradients.items()
        }
        copied = [name for name in gradients if floats[name] is not gradients[name]]
        if copied:
            foreach_copy_([floats[name] for name in copied], [gradients[name] for name in copied])
        return floats

    def arrays(
        self,
        gradients: Mapping[str, torch.Tensor],
        device: TensorDevice,
        *,
        beside: bool = False,
    ) -> dict[str, FloatArray]:
        """Gradients as arrays of their device; contiguous ones of 16 bits are copied only where kernels do not
        read them.

        Args:
            gradients: see `of`.
            beside: another thread encodes them, when the current stream has computed them.
        """
        if not gradients:
            return {}
        halves = {
            name: Halves(gradient, self._memory(name, gradient))
            for name, gradient in gradients.items()
            if _is_half(gradient)
        }
        floats = self.of({name: grad for name, grad in gradients.items() if name not in halves})
        place = next(iter(gradients.values())).device
        computed = computed_by_now(place) if beside else None  # and copied
        return {
            name: device.array(self._kept[name], computed, halves[name])
            if name in halves
            else device.array(floats[name], computed)
            for name in gradients
        }

    def renew(
        self, gradients: Mapping[str, torch.Tensor], arrays: Mapping[str, FloatArray]
    ) -> None:
        """Let arrays of the last step, by name, have the elements of this one's gradients, in the same memory.

        Arrays of contiguous float32 need it not: they are the gradients themselves.
        """
        halves = halves_of(arrays.values())
        for each in halves:
            each.waits = True
        if len(halves) < len(gradients):
            self.of({name: grad for name, grad in gradients.items() if not _is_half(grad)})

    def _memory(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        kept = self._kept.get(name)
        if kept is None or (kept.shape, kept.device) != (gradient.shape, gradient.device):
            kept = torch.empty(gradient.shape, dtype=torch.float32, device=gradient.device)
            self._kept[name] = kept
        return kept


def _is_half(gradient: torch.Tensor) -> bool:
    return gradient.dtype in (torch.float16, torch.bfloat16) and gradient.is_contiguous()


def is_float(gradient: torch.Tensor) -> bool:
    """Whether a gradient is an array itself, and needs no copy."""
    return gradient.dtype == torch.float32 and gradient.is_contiguous()
