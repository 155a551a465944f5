"""SGD for specs that apply the momentum themselves (DGC)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = ["DGCSGD"]


class DGCSGD(torch.optim.SGD):
    """SGD that applies its momentum to the weight decay alone.

    The memory ``momentum_correction`` (of ``dgc``) applies the momentum to gradients. Ranks do not
    send the weight decay, so this optimizer applies the momentum to it: ::

        d = weight_decay * p;  m = momentum * m + d;  p -= lr * (grad + m)

    or with nesterov ``p -= lr * (grad + d + momentum * m)``. Both momenta together equal that of
    SGD. As ``DGCSGD`` in the authors' code of Lin et al., "Deep Gradient Compression" (ICLR 2018).

    Args:
        momentum, nesterov: the same as in the spec.
        params, lr, weight_decay, maximize: as in ``torch.optim.SGD``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        # Groups have the keys of SGD, so that its schedulers and checkpoints work.
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step; returns the loss of ``closure``, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(self._direction(p, group), alpha=-group["lr"])
        return loss

    def _direction(self, p: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        assert p.grad is not None
        grad: torch.Tensor = -p.grad if group["maximize"] else p.grad
        if group["weight_decay"] == 0:
            return grad
        decay = p.mul(group["weight_decay"])
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        momentum = state["momentum_buffer"].mul_(group["momentum"]).add_(decay)
        if group["nesterov"]:
            return grad.add(decay.add_(momentum, alpha=group["momentum"]))
        return grad.add(momentum)
