"""Products of matrices and thin factors, by torch's own operators; no kernel of this package is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

__all__ = ["Product", "multiply", "outer"]


class Product(NamedTuple):
    """See `gradcomp.adapter_api.ToMultiply`; all tensors are on one device."""

    m: torch.Tensor
    grad: torch.Tensor | None
    beta: float
    factor: torch.Tensor
    transposed: bool


def multiply(products: Sequence[Product]) -> torch.Tensor:
    """The products, flat, one after the other; matrices with a gradient take it up first."""
    numels = [factor.numel() // n * k for (n, k), factor in map(_sides, products)]
    result = products[0].m.new_empty(sum(numels))
    for product, part in zip(products, torch.split(result, numels), strict=True):
        m, grad, beta, _, transposed = product
        if grad is not None:
            # As the core does: the product is rounded before the sum.
            if beta != 1:
                m.mul_(beta)
            m.add_(grad)
        (n, k), factor = _sides(product)
        torch.mm(factor.view(-1, n), m if transposed else m.t(), out=part.view(-1, k))
    return result


def _sides(product: Product) -> tuple[tuple[int, int], torch.Tensor]:
    """Elements of a vector of the factor, and of one of the product."""
    rows, cols = product.m.shape
    return (rows, cols) if product.transposed else (cols, rows), product.factor


def outer(p: torch.Tensor, q: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The sum of the vectors' outer products in their order, each product and sum rounded, as the core does.

    A matrix product would sum in an order of the device's choice, and fuse products with sums.
    """
    rows, cols = shape
    left, right = p.view(-1, rows, 1), q.view(-1, 1, cols)
    total = left[0] * right[0]
    if len(left) > 1:
        one = torch.empty_like(total)
        for x, y in zip(left[1:], right[1:], strict=True):
            total += torch.mul(x, y, out=one)
    return total
