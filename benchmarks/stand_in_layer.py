"""A backward pass with fixed work and fixed gradients."""

from typing import Any

import torch


class Layer(torch.autograd.Function):
    """Passes its input on; computes in the backward pass, then gives its weight a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, work: Any) -> torch.Tensor:
        """The input."""
        ctx.work = work
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *of_output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """The fixed gradient."""
        matrix, products, grad = ctx.work
        for _ in range(products):
            matrix @ matrix
        return of_output[0], grad, None
