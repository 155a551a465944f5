"""How the gradients of one bucket of DDP travel, kept from step to step."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gradcomp.adapter_api import FloatArray, Resolved
from gradcomp_torch.devices import TensorDevice
from gradcomp_torch.float_copies import FloatCopies
from torch_compressors.gloo.sums import FUSED_BYTES

__all__ = ["BucketPlan"]


class BucketPlan:
    """How the gradients of a bucket travel: for one step, or as long as `Collector.routes` stay as they are.

    Args:
        routes: of the step.
        grads: by name.

    Attributes:
        dense: names of those that travel uncompressed, those of a request together.
        collected: all others, in the bucket's order.
        there: names of those that kernels of a device take.
        copied: those that travel through the host, from a device.
        averages: of the last step; empty with some on the host.
        apart: the gradients on a device that are not in the memory of these averages, with them.
    """

    def __init__(self, routes: int | None, grads: dict[str, torch.Tensor]) -> None:
        self._routes = routes
        self._grads = grads
        self.nbytes = {name: grad.nbytes for name, grad in grads.items()}
        self.dense: list[list[str]] = []
        self.collected: dict[str, Resolved] = {}
        self.there: list[str] = []
        self.copied: dict[str, torch.Tensor] = {}
        self.averages: list[object] = []
        self.apart: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._flat: dict[str, FloatArray] = {}
        self._floats: dict[str, FloatArray] = {}
        self._arrays: dict[str, FloatArray] = {}

    def holds(self, routes: int | None, grads: dict[str, torch.Tensor]) -> bool:
        """Whether gradients travel as planned."""
        return routes is not None and routes == self._routes and grads is self._grads

    def add_dense(self, names: Iterable[str]) -> None:
        """Let gradients travel uncompressed: large ones alone, the others in one request."""
        small = []
        for name in names:
            if self.nbytes[name] < FUSED_BYTES:
                small.append(name)
            else:
                self.dense.append([name])
        if small:
            self.dense.append(small)

    def flat(self, name: str) -> FloatArray:
        """A gradient of the host in its own dtype, flat; a copy, if its layout is not contiguous."""
        flat = self._flat.get(name)
        if flat is None:
            grad = self._grads[name]
            flat = grad.reshape(-1).numpy()
            if grad.is_contiguous():
                self._flat[name] = flat
        return flat

    def floats(self, name: str) -> FloatArray:
        """A gradient of the host as contiguous float32; a copy, if it is not."""
        floats = self._floats.get(name)
        if floats is None:
            grad = self._grads[name]
            floats = grad.to(torch.float32).contiguous().numpy()
            if grad.dtype == torch.float32 and grad.is_contiguous():
                self._floats[name] = floats
        return floats

    def arrays(
        self, device: TensorDevice, copies: FloatCopies, *, beside: bool
    ) -> dict[str, FloatArray]:
        """The gradients that kernels of a device take.

        Args:
            copies: of those that are not contiguous float32.
            beside: another thread encodes them, when the current stream has computed them.
        """
        if len(self._arrays) < len(self.there) or beside:
            grads = {name: self._grads[name] for name in self.there}
            arrays = copies.arrays(grads, device, beside=beside)
            floats = (x.dtype == torch.float32 and x.is_contiguous() for x in grads.values())
            if beside or not all(floats):
                return arrays
            self._arrays = arrays
        return self._arrays
