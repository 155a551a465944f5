"""Gradients of a device on the host, where no kernel takes them.

Tests use their own device, which copies late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from gradcomp_torch import staging

__all__ = ["HostCopies", "Run", "neighbours", "to_device", "to_host"]


class Run(NamedTuple):
    """Tensors of one dtype, which are copied to one piece of memory.

    Attributes:
        sizes: number of elements, of each tensor.
        pieces: the tensors, as `neighbours` gives them.
    """

    names: list[str]
    sizes: list[int]
    pieces: list[torch.Tensor]

    def parts(self, host: torch.Tensor) -> list[torch.Tensor]:
        """The places of the pieces in flat memory."""
        parts = torch.split(host, [piece.numel() for piece in self.pieces])
        return [
            part if piece.dim() == 1 else part.view(piece.shape)
            for part, piece in zip(parts, self.pieces, strict=True)
        ]


class HostCopies:
    """Copies of gradients in pinned memory, in the gradients' dtypes.

    They start when the device has done what it was given so far, while it goes on working. Nothing waits
    for them until `wait`. Tensors of one dtype that are neighbours in memory are one copy.

    Args:
        tensors: of one device, by name.
        runs: of earlier copies of the same tensors, in the same memory; None: they are found now.

    Attributes:
        arrays: the copies, flat, by name; without content before `wait`.
        runs: of the tensors.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], runs: Sequence[Run] | None = None
    ) -> None:
        self._tensors = tensors
        self.arrays: dict[str, torch.Tensor] = {}
        self.runs = _runs_of(tensors) if runs is None else runs
        self._together: list[torch.Tensor] = []
        self._staged: staging.Staged | None = None
        if not tensors:
            return
        pieces = [piece for run in self.runs for piece in run.pieces]
        device = pieces[0].device
        with staging.copies_of(device).beside(pieces) as self._staged:
            for run in self.runs:
                host = staging.room(sum(run.sizes), run.pieces[0].dtype, device)
                for on_device, on_host in zip(run.pieces, run.parts(host), strict=True):
                    on_host.copy_(on_device, non_blocking=True)
                self.arrays.update(zip(run.names, torch.split(host, run.sizes), strict=True))
                self._together.append(host)

    def part(self, begin: int, end: int) -> torch.Tensor:
        """These elements of all copies, one after the other, flat; of tensors of one dtype."""
        (host,) = self._together
        return host[begin:end]

    def wait(self) -> None:
        """Wait for the copies."""
        if self._staged is not None:
            self._staged.wait()

    def floats(self, name: str) -> tuple[torch.Tensor, Callable[[], None]]:
        """A gradient as flat float32 on the host, and a function that waits for its elements.

        Other dtypes are converted on the host: 16-bit elements are half the bytes to copy.
        """
        host = self.arrays[name]
        if host.dtype == torch.float32:
            return host, self.wait
        floats = torch.empty(host.shape, dtype=torch.float32, device="cpu")

        def arrive() -> None:
            self.wait()
            floats.copy_(host)

        return floats, arrive

    def give_back(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Start to copy the arrays, which are averages now, into tensors of the same shapes.

        The current stream copies, so what it is given next finds the averages.
        """
        runs = self.runs if gradients is self._tensors else _runs_of(gradients)
        for run, host in zip(runs, self._together, strict=True):
            for on_device, on_host in zip(run.pieces, run.parts(host), strict=True):
                on_device.copy_(on_host, non_blocking=True)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the host: a copy, for which the caller waits, unless it is on the host already."""
    if tensor.device.type == "cpu":
        return tensor
    copies = HostCopies({"": tensor.detach()})
    copies.wait()
    return copies.arrays[""].view(tensor.shape)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Start to copy a tensor of the host, which may change then; the current stream copies."""
    if device.type == "cpu":
        return tensor
    host = staging.room(tensor.numel(), tensor.dtype, device).view(tensor.shape)
    return host.copy_(tensor).to(device, non_blocking=True)


def neighbours(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors in their order: those that follow each other in memory as one flat view.

    A tensor that is not contiguous stays as it is.
    """
    pieces = []
    place = 0
    while place < len(tensors):
        first = tensors[place]
        numel = first.numel()
        place += 1
        while place < len(tensors) and _is_next(first, numel, tensors[place]):
            numel += tensors[place].numel()
            place += 1
        pieces.append(first.as_strided((numel,), (1,)) if first.is_contiguous() else first)
    return pieces


def _runs_of(tensors: Mapping[str, torch.Tensor]) -> list[Run]:
    """Tensors by their dtypes."""
    by_dtype: dict[torch.dtype, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        by_dtype.setdefault(tensor.dtype, {})[name] = tensor
    return [
        Run(
            list(some),
            [tensor.numel() for tensor in some.values()],
            neighbours(list(some.values())),
        )
        for some in by_dtype.values()
    ]


def _is_next(first: torch.Tensor, numel: int, tensor: torch.Tensor) -> bool:
    """Whether a tensor follows the first ``numel`` elements in the memory of another one."""
    return (
        first.is_contiguous()
        and tensor.is_contiguous()
        and first.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        and first.storage_offset() + numel == tensor.storage_offset()
    )
