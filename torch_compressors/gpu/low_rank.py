"""Products of matrices and thin factors, by torch's own operators; no kernel of this package is needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["multiply", "outer", "take_up", "take_up_all"]


def take_up(m: torch.Tensor, grad: torch.Tensor, beta: float) -> None:
    """M = beta * M + gradient. As in the core, the product is rounded before the sum."""
    if beta != 1:
        m.mul_(beta)
    m.add_(grad)


def take_up_all(matrices: Sequence[tuple[torch.Tensor, torch.Tensor, float]]) -> None:
    """As `take_up`, for matrices, gradients and betas, in few launches."""
    if not matrices:
        return
    weighted = [(m, beta) for m, _, beta in matrices if beta != 1]
    if weighted:
        torch._foreach_mul_([m for m, _ in weighted], [beta for _, beta in weighted])
    torch._foreach_add_([m for m, _, _ in matrices], [grad for _, grad, _ in matrices])


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
