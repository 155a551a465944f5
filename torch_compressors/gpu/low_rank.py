"""Products of matrices and thin factors, by torch's own operators; no kernel of this package is needed."""

from __future__ import annotations

import torch

__all__ = ["multiply", "outer", "take_up"]


def take_up(m: torch.Tensor, grad: torch.Tensor, beta: float) -> None:
    """M = beta * M + gradient. As in the core, the product is rounded before the sum."""
    if beta != 1:
        m.mul_(beta)
    m.add_(grad)


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
