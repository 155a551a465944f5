"""SGD for specs that apply the momentum themselves (DGC)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from gradcomp import Config
from gradcomp.errors import ConfigError

__all__ = ["DGCSGD", "check_momentum", "check_optional"]


class DGCSGD(torch.optim.SGD):
    """SGD whose momentum is applied to the weight decay alone.

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


def check_momentum(config: Config, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that applies the momentum a second time, not at all, or another one.

    Raises:
        ConfigError: the optimizer does not fit the configuration; the message names both.
    """
    memory = config.momentum_correction
    if isinstance(optimizer, DGCSGD):
        if memory is None:
            raise ConfigError(
                f"DGCSGD leaves the momentum to the compression, and '{config.compress.default}' "
                "applies none: use torch.optim.SGD, or a spec such as dgc(ratio=0.001)"
            )
        for group in optimizer.param_groups:
            for key in ("momentum", "nesterov"):
                if group[key] != memory.params[key]:
                    raise ConfigError(
                        f"DGCSGD has {key} {group[key]} and '{memory.text}' {memory.params[key]}: "
                        "they must be the same"
                    )
        return
    if memory is None:
        return
    for group in optimizer.param_groups:
        for key in ("momentum", "betas"):
            if group.get(key):
                raise ConfigError(
                    f"{type(optimizer).__name__} has {key}={group[key]}, and '{memory.name}' "
                    "applies the momentum already: use torch_compressors.DGCSGD, or an "
                    "optimizer without momentum"
                )


def check_optional(config: Config, optimizer: torch.optim.Optimizer | None, function: str) -> None:
    """As `check_momentum`, but without momentum correction ``optimizer`` may be None.

    Args:
        function: name of the function that has the argument ``optimizer``, for the message.

    Raises:
        ConfigError: the optimizer is missing, or does not fit.
    """
    if optimizer is not None:
        check_momentum(config, optimizer)
    elif config.momentum_correction is not None:
        raise ConfigError(
            f"'{config.compress.default}' applies the optimizer's momentum: pass optimizer=..., a "
            f"torch_compressors.DGCSGD or an optimizer without momentum, to {function}"
        )
