"""Products of matrices and thin factors, by torch's own operators; no kernel of this package is needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradcomp.adapter_api import ToMultiply, ToShare
from torch_compressors.devices import tensor_of

__all__ = ["multiply", "outer", "take_up"]


def take_up(matrices: Sequence[ToMultiply | ToShare]) -> None:
    """M = beta * M + gradient, where there is one. As in the core, the product is rounded before the sum."""
    given = [work for work in matrices if work.grad is not None]
    weighted = [work for work in given if work.beta != 1]
    if weighted:
        torch._foreach_mul_(
            [tensor_of(work.m) for work in weighted], [work.beta for work in weighted]
        )
    if given:
        torch._foreach_add_(
            [tensor_of(work.m) for work in given], [tensor_of(work.grad) for work in given]
        )


def multiply(m: torch.Tensor, factor: torch.Tensor, transposed: bool, out: torch.Tensor) -> None:
    """M q, or M^T p where ``transposed``; ``factor`` and ``out`` are flat, one vector after the other."""
    rows, cols = m.shape
    n, k = (rows, cols) if transposed else (cols, rows)
    torch.mm(factor.view(-1, n), m if transposed else m.t(), out=out.view(-1, k))


def outer(p: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The sum of the vectors' outer products in their order; each product and sum is rounded, as in the core.

    A matrix product would sum in an order of the device's choice, and fuse products with sums.
    """
    rows, cols = out.shape
    left, right = p.view(-1, rows, 1), q.view(-1, 1, cols)
    torch.mul(left[0], right[0], out=out)
    if len(left) > 1:
        one = torch.empty_like(out)
        for x, y in zip(left[1:], right[1:], strict=True):
            out += torch.mul(x, y, out=one)
    return out
