"""Parameters of PyTorch: their bytes, for digests, and their names without ``torch.compile``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

__all__ = ["parameter_bytes", "uncompiled_name"]


def parameter_bytes(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, Any]]:
    """Names and bytes of tensors of any dtype, memory layout and device."""
    for name, tensor in named:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        yield name, flat.view(torch.uint8).numpy()


def uncompiled_name(name: str) -> str:
    """The name that a parameter or module has without ``torch.compile``.

    Compiled and eager runs so have the same rules, random numbers and checkpoints.
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
