"""A model with gradients only: a real model's shapes, and a fixed time to compute."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch

from gradcomp.tools.model_shapes import model_shapes

__all__ = ["Layer", "Synthetic", "random_numbers"]

_APART = 8 << 20
"""From the numbers of one rank to the next one's: too far for them to meet in a cache."""


def random_numbers(name: str, ranks: int) -> torch.Tensor:
    """Normal numbers for all ranks' gradients, for a model of gradcomp.tools.model_shapes.MODELS.

    Each rank begins at a different place, so ranks share the memory and have different gradients.
    """
    count = _numel(name) + (ranks - 1) * _APART
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


def _numel(name: str) -> int:
    return sum(map(math.prod, model_shapes(name).values()))


class Layer(torch.autograd.Function):
    """Passes its input on; waits in the backward pass, then gives its weight a gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, seconds: float
    ) -> torch.Tensor:
        """The input."""
        ctx.work = grad, seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *of_output: torch.Tensor) -> tuple[Any, ...]:
        """The fixed gradient."""
        grad, seconds = ctx.work
        if seconds:  # even a sleep of zero seconds yields the processor
            time.sleep(seconds)
        return of_output[0], grad, None, None


class Synthetic(torch.nn.Module):
    """A chain of layers with a fixed time of the backward pass.

    The processor is free meanwhile, as during an accelerator's computation.

    Args:
        name: one of gradcomp.tools.model_shapes.MODELS.
        seconds: duration of a step's forward and backward pass; a third is the forward pass.
        numbers: from `random_numbers`; the gradients are the same in every step.
        rank: owner of the gradients.
    """

    def __init__(self, name: str, seconds: float, numbers: torch.Tensor, rank: int) -> None:
        super().__init__()
        shapes = model_shapes(name)
        self.names = list(shapes)
        self.weights = torch.nn.ParameterList()
        self.grads = []
        # NumPy's zeros take no memory until they are read, and nothing reads them.
        zeros = torch.from_numpy(np.zeros(_numel(name), np.float32))
        numbers = numbers[rank * _APART :]
        for shape in shapes.values():
            size = math.prod(shape)
            self.weights.append(torch.nn.Parameter(zeros[:size].view(shape)))
            self.grads.append(numbers[:size].view(shape))
            zeros, numbers = zeros[size:], numbers[size:]
        layers = sum(weight.ndim > 1 for weight in self.weights)
        self.forward_seconds = seconds / 3
        self.layer_seconds = 2 * seconds / 3 / layers

    def named_weights(self) -> list[tuple[str, torch.nn.Parameter]]:
        """The parameters, by their names in the real model."""
        return list(zip(self.names, self.weights, strict=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input, a scalar, after some time."""
        time.sleep(self.forward_seconds)
        for weight, grad in zip(self.weights, self.grads, strict=True):
            x = Layer.apply(  # type: ignore[no-untyped-call]
                x, weight, grad, self.layer_seconds if weight.ndim > 1 else 0.0
            )
        return x
