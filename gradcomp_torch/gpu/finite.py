"""Gradients that are not finite, as a step of mixed precision sends them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradcomp_torch.gpu.bucket import EXACT, Rows, current, spread, upload
from gradcomp_torch.gpu.kernels import finite as kernels

__all__ = ["Poison"]

BLOCK = 1024


class Poison:
    """Launches for gradients of some sizes; the host waits for nothing."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self._device = device
        self._rows = Rows(len(sizes), kernels.FIELDS.value, device)
        self._rows.host[:, kernels.NUMEL.value] = sizes
        blocks, self._rows.host[:, kernels.FIRST.value] = spread(sizes, BLOCK)
        self._blocks = upload(blocks, device)
        self._found = torch.zeros(len(sizes), dtype=torch.int32, device=device)

    def launch(self, grads: Sequence[torch.Tensor]) -> None:
        """Make those gradients all NaN that have an element that is not finite, on the current stream."""
        self._rows.host[:, kernels.GRAD.value] = [grad.data_ptr() for grad in grads]
        if not self._blocks.numel():
            return
        with current(self._device):
            self._rows.upload()
            self._found.zero_()
            arguments = self._rows.memory, self._blocks, self._found
            for kernel in (kernels.find_nonfinite_kernel, kernels.poison_kernel):
                kernel[(self._blocks.numel(),)](*arguments, B=BLOCK, **EXACT)
