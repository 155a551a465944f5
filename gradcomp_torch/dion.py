"""Dion: an optimizer that takes its steps of matrices from the exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from gradcomp import Config
from gradcomp.errors import ConfigError

__all__ = ["Dion", "dion_groups"]


class Dion(torch.optim.Optimizer):
    """Applies the steps of the algorithms ``dion`` and ``dion2``; all other parameters have Lion.

    They exchange parts of the ranks' momenta, and their result, in ``p.grad``, is the orthonormal
    step. So the optimizer keeps no state of a matrix: ::

        p = (1 - lr * weight_decay) * p - lr * p.grad

    Other parameters, such as biases and embeddings, have averages in ``p.grad``: ::

        p = (1 - lr * weight_decay) * p - lr * sign(beta1 * m + (1 - beta1) * p.grad)
        m = beta2 * m + (1 - beta2) * p.grad

    Ahn et al., "Dion" (arXiv:2504.05295), section 3, and "Dion2" (arXiv:2512.16928). Lion: Chen et
    al., "Symbolic Discovery of Optimization Algorithms" (NeurIPS 2023). docs/algorithms/dion.md.

    Args:
        params: of `dion_groups`, which tells matrices from other parameters.
        lr: learning rate; a group may have its own.
        weight_decay: decoupled from the gradient.
        betas: Lion's, in [0, 1).

    Raises:
        ConfigError: a group has no rule, or a number is not in its range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        if not lr >= 0:
            raise ConfigError(f"lr is {lr}; it must be at least 0")
        if not weight_decay >= 0:
            raise ConfigError(f"weight_decay is {weight_decay}; it must be at least 0")
        if not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(f"betas are {betas}; each must be in [0, 1)")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas})
        for group in self.param_groups:
            if group.get("rule") not in ("dion", "lion"):
                raise ConfigError(
                    "a parameter group has no rule: make the groups by "
                    "torch_compressors.dion_groups(model.named_parameters(), config)"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step; returns the loss of ``closure``, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            direction = self._lion if group["rule"] == "lion" else self._given
            for p in group["params"]:
                if p.grad is not None:
                    step = direction(p, group)
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(step, alpha=-group["lr"])
        return loss

    def _given(self, p: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        assert p.grad is not None
        return p.grad

    def _lion(self, p: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        assert p.grad is not None
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        momentum = state["momentum"]
        beta1, beta2 = group["betas"]
        step: torch.Tensor = momentum.lerp(p.grad, 1 - beta1).sign_()
        momentum.lerp_(p.grad, 1 - beta2)
        return step


def dion_groups(
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]], config: str | Config
) -> list[dict[str, Any]]:
    """Parameter groups for `Dion` and `DeMo`: matrices to which ``config`` gives steps; others.

    Args:
        named_parameters: as from ``model.named_parameters()``.
        config: as for the compression.

    Raises:
        ConfigError: a matrix has ``dion``, ``dion2`` or ``demo`` in only some of the steps.
    """
    config = Config.of(config)
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, p in named_parameters:
        given = config.gives_steps(name, tuple(p.shape)) and p.dim() >= 2
        (matrices if given else others).append(p)
    groups = [{"params": matrices, "rule": "dion"}, {"params": others, "rule": "lion"}]
    return [group for group in groups if group["params"]]
