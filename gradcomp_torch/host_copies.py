"""Gradients of a device on the host, where no kernel takes them.

Tests use their own device, which copies late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from gradcomp_torch import staging

__all__ = ["HostCopies", "to_device", "to_host"]


class HostCopies:
    """Copies of gradients in pinned memory, in the gradients' dtypes.

    They start when the device has done what it was given so far, while it goes on working. Nothing waits
    for them until `wait`. Tensors of one dtype that are neighbours in memory are one copy.

    Args:
        tensors: of one device, by name.

    Attributes:
        arrays: the copies, flat, by name; without content before `wait`.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.arrays: dict[str, torch.Tensor] = {}
        self._together: list[tuple[list[str], torch.Tensor]] = []
        self._staged: staging.Staged | None = None
        if not tensors:
            return
        by_dtype: dict[torch.dtype, list[str]] = {}
        for name, tensor in tensors.items():
            by_dtype.setdefault(tensor.dtype, []).append(name)
        given = list(tensors.values())
        with staging.copies_of(given[0].device).beside(given) as self._staged:
            for names in by_dtype.values():
                given = [tensors[name] for name in names]
                sizes = [tensor.numel() for tensor in given]
                host = staging.room(sum(sizes), given[0].dtype, given[0].device)
                for on_device, on_host in _pieces(given, host):
                    on_host.copy_(on_device, non_blocking=True)
                self.arrays.update(zip(names, torch.split(host, sizes), strict=True))
                self._together.append((names, host))

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
        for names, host in self._together:
            for on_device, on_host in _pieces([gradients[name] for name in names], host):
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


def _pieces(
    tensors: Sequence[torch.Tensor], host: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Views of tensors with their places in flat memory of the host; neighbours are one view."""
    begin = place = 0
    while place < len(tensors):
        first = tensors[place]
        numel = first.numel()
        place += 1
        while place < len(tensors) and _is_next(first, numel, tensors[place]):
            numel += tensors[place].numel()
            place += 1
        on_host = host[begin : begin + numel]
        begin += numel
        if first.is_contiguous():
            yield first.as_strided((numel,), (1,)), on_host
        else:
            yield first, on_host.view(first.shape)


def _is_next(first: torch.Tensor, numel: int, tensor: torch.Tensor) -> bool:
    """Whether a tensor follows the first ``numel`` elements in the memory of another one."""
    return (
        first.is_contiguous()
        and tensor.is_contiguous()
        and first.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        and first.storage_offset() + numel == tensor.storage_offset()
    )
