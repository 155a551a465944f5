"""A model that only has gradients: a real one's shapes, and a given time to compute."""

from __future__ import annotations

import time
from typing import Any

import torch

from gradcomp.shapes import model_shapes

__all__ = ["Synthetic"]


class _Layer(torch.autograd.Function):
    """Passes its input on; in the backward pass it waits, then gives its weight a gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, seconds: float
    ) -> torch.Tensor:
        """The input."""
        ctx.work = grad, seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *of_output: torch.Tensor) -> tuple[Any, ...]:
        """The gradient that was given."""
        grad, seconds = ctx.work
        if seconds:  # even a sleep of no time lets others have the processor
            time.sleep(seconds)
        return of_output[0], grad, None, None


class Synthetic(torch.nn.Module):
    """A chain of layers whose backward pass takes a given time.

    The processor is free meanwhile, as it is while an accelerator computes.

    Args:
        name: one of gradcomp.shapes.MODELS.
        seconds: of one step's forward and backward pass together; a third is the forward pass.
        seed: of the gradients, which are the same in every step: normal numbers whose size falls
            from layer to layer.
    """

    def __init__(self, name: str, seconds: float, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.names = list(model_shapes(name))
        self.weights = torch.nn.ParameterList()
        self.grads = []
        for i, shape in enumerate(model_shapes(name).values()):
            self.weights.append(torch.nn.Parameter(torch.zeros(shape)))
            scale = 0.1 / (1 + i)
            self.grads.append(torch.randn(shape, generator=random) * scale)
        layers = sum(weight.ndim > 1 for weight in self.weights)
        self.forward_seconds = seconds / 3
        self.layer_seconds = 2 * seconds / 3 / layers

    def named_weights(self) -> list[tuple[str, torch.nn.Parameter]]:
        """The parameters, by the names that they have in the real model."""
        return list(zip(self.names, self.weights, strict=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input, a scalar, after some time."""
        time.sleep(self.forward_seconds)
        for weight, grad in zip(self.weights, self.grads, strict=True):
            x = _Layer.apply(  # type: ignore[no-untyped-call]
                x, weight, grad, self.layer_seconds if weight.ndim > 1 else 0.0
            )
        return x
