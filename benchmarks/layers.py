"""A backward pass whose work and whose gradients are given."""

from typing import Any

import torch


class Layer(torch.autograd.Function):
    """Passes its input on; in the backward pass it computes, then gives its weight a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, work: Any) -> torch.Tensor:
        """The input."""
        ctx.work = work
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *of_output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """The gradient that was given."""
        matrix, products, grad = ctx.work
        for _ in range(products):
            matrix @ matrix
        return of_output[0], grad, None
