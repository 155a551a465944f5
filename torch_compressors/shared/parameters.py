"""The bytes of parameters of PyTorch, for digests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

__all__ = ["parameter_bytes"]


def parameter_bytes(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, Any]]:
    """Names and bytes of tensors of any dtype, memory layout and device."""
    for name, tensor in named:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        yield name, flat.view(torch.uint8).numpy()
