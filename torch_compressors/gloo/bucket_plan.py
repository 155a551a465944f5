"""One bucket of DDP: its gradients and how they travel, kept from step to step."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch

from gradcomp.adapter_api import FloatArray, Resolved
from gradcomp_torch.compat import foreach_copy_
from gradcomp_torch.devices import TensorArray, TensorDevice
from gradcomp_torch.float_copies import FloatCopies, is_float
from gradcomp_torch.host_copies import HostCopies, Run, neighbours
from torch_compressors.gloo.sums import FUSED_BYTES

__all__ = ["BucketPlan", "DenseRequest", "label_of", "same"]


class DenseRequest:
    """Gradients that travel uncompressed in one request.

    Attributes:
        label: of the request.
        sizes: in bytes, by name; ``nbytes`` together.
        grads: of these names.
        in_place: a result for each gradient: None, as averages overwrite the gradients.
        ranges: where they are in the copies of a bucket's gradients on the host, which are in one piece.
    """

    def __init__(self, grads: dict[str, torch.Tensor]) -> None:
        self.label = label_of(list(grads))
        self.sizes = {name: grad.nbytes for name, grad in grads.items()}
        self.in_place: list[FloatArray | None] = [None] * len(grads)
        self.nbytes = sum(self.sizes.values())
        self.grads = list(grads.values())
        self.ranges: list[tuple[int, int]] = []
        self._pieces: list[FloatArray] = []

    def on_host(self) -> tuple[list[FloatArray], list[FloatArray | None]]:
        """The gradients in their own dtype, flat, neighbours in memory as one piece; and a result for each gradient.

        If layouts are not contiguous, all are copied in each step, and the copies are the results.
        """
        if not self._pieces:
            if not all(grad.is_contiguous() for grad in self.grads):
                copies = [grad.reshape(-1).numpy() for grad in self.grads]
                return copies, list(copies)
            self._pieces = [piece.numpy() for piece in neighbours(self.grads)]
        return self._pieces, self.in_place


class BucketPlan:
    """The gradients of a bucket, in memory that DDP mostly uses again in the next step, and how they travel.

    Args:
        buffer: of the bucket.
        grads: views of the buffer in the layouts of the parameters, by name.

    Attributes:
        nbytes: of each gradient.
        dtype: of all gradients.
        dense: those that travel uncompressed.
        collected: all others, in the bucket's order.
        there: names of those that kernels of a device take.
        copied: those that travel through the host, from a device, in the bucket's order.
    """

    def __init__(self, buffer: torch.Tensor, grads: dict[str, torch.Tensor]) -> None:
        self.grads = grads
        self.nbytes = {name: grad.nbytes for name, grad in grads.items()}
        self.dtype = buffer.dtype
        self._buffer = buffer
        self.decide(None)

    def is_in(self, buffer: torch.Tensor) -> bool:
        """Whether the gradients are in this buffer.

        No other bucket has its memory, as the plan keeps it.
        """
        return self._buffer.is_set_to(buffer)

    def holds(self, routes: tuple[int, int] | None) -> bool:
        """Whether gradients travel as planned in a step with these `Collector.routes`."""
        return routes is not None and routes == self._routes

    def decide(
        self,
        routes: tuple[int, int] | None,
        dense: Iterable[str] = (),
        collected: dict[str, Resolved] | None = None,
        there: Sequence[str] = (),
        copied: Collection[str] = (),
    ) -> None:
        """Plan how gradients travel, in one step, or as long as `Collector.routes` stay as they are.

        Args:
            routes: of the step.
            dense: travel uncompressed: large ones alone, the others in one request.
            collected, there, copied: see above.
        """
        self._routes = routes
        self.collected: dict[str, Resolved] = collected or {}
        self.there = there
        self.copied = {name: grad for name, grad in self.grads.items() if name in copied}
        self.dense = self._requests_of(dense)
        self._elsewhere = [name for name in there if not is_float(self.grads[name])]
        self._runs: Sequence[Run] | None = None
        self._floats: list[FloatArray] = []
        self._arrays: dict[str, FloatArray] = {}
        self._found: list[object] = [None] * len(self.grads)
        self._apart: dict[str, torch.Tensor] = {}

    def _requests_of(self, names: Iterable[str]) -> list[DenseRequest]:
        requests, small = [], {}
        for name in names:
            if self.nbytes[name] < FUSED_BYTES:
                small[name] = self.grads[name]
            else:
                requests.append(DenseRequest({name: self.grads[name]}))
        if small:
            requests.append(DenseRequest(small))
        ends = accumulate(grad.numel() for grad in self.copied.values())
        end_of = dict(zip(self.copied, ends, strict=True))
        for request in requests:
            for name in request.sizes:
                if name not in end_of:
                    continue
                begin, end = end_of[name] - self.grads[name].numel(), end_of[name]
                if request.ranges and request.ranges[-1][1] == begin:
                    begin, _ = request.ranges.pop()
                request.ranges.append((begin, end))
        return requests

    def copies(self) -> HostCopies | None:
        """Start to copy those that travel through the host; None: there are none."""
        if not self.copied:
            return None
        copies = HostCopies(self.copied, self._runs)
        self._runs = copies.runs
        return copies

    def floats(self) -> list[FloatArray]:
        """The collected gradients on the host, as contiguous float32; copies of those that are not."""
        if self._floats:
            return self._floats
        grads = [self.grads[name] for name in self.collected]
        floats = [grad.to(torch.float32).contiguous().numpy() for grad in grads]
        if all(grad.dtype == torch.float32 and grad.is_contiguous() for grad in grads):
            self._floats = floats
        return floats

    def arrays(
        self, device: TensorDevice, copies: FloatCopies, *, beside: bool
    ) -> dict[str, FloatArray]:
        """The gradients that kernels of a device take.

        Args:
            copies: of those that are not contiguous float32.
            beside: another thread encodes them, when the current stream has computed them.
        """
        if beside or not self._arrays:
            grads = {name: self.grads[name] for name in self.there}
            arrays = copies.arrays(grads, device, beside=beside)
            if beside:
                return arrays
            self._arrays = arrays
        elif self._elsewhere:
            grads = {name: self.grads[name] for name in self._elsewhere}
            copies.renew(grads, {name: self._arrays[name] for name in grads})
        return self._arrays

    def give(self, averages: Sequence[Any], copies: HostCopies | None) -> None:
        """Replace the gradients by their averages, where these are not in place already.

        Args:
            averages: of all gradients, in their order.
            copies: of the gradients on the host; None if the gradients are there, or none is copied.
        """
        if not same(averages, self._found):
            self._take(averages, copies)
        if self._apart:
            foreach_copy_([self.grads[name] for name in self._apart], list(self._apart.values()))
        if copies is not None:
            copies.give_back(self.copied)

    def _take(self, averages: Sequence[Any], copies: HostCopies | None) -> None:
        """Find the averages that are apart from their gradients on the device; copy those on the host."""
        given = dict(zip(self.collected, self._floats, strict=False))
        for place, (name, average) in enumerate(zip(self.grads, averages, strict=True)):
            if average is None or average is self._found[place]:
                continue
            if name in given and average.base is given[name]:
                continue
            grad = self.grads[name]
            if isinstance(average, TensorArray):
                there = average.tensor
                self._found[place] = average  # the same object in the next step
                self._apart.pop(name, None)
                if there.data_ptr() != grad.data_ptr():
                    self._apart[name] = there.view(grad.shape)
                continue
            result = torch.from_numpy(average)
            to = grad if copies is None else copies.arrays[name]
            if result.data_ptr() != to.data_ptr():
                to.copy_(result.view(to.shape))


def same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether they are the same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def label_of(names: Sequence[str]) -> str:
    """The name of a request of several gradients."""
    return names[0] if len(names) == 1 else f"{names[0]}+{len(names) - 1}"
