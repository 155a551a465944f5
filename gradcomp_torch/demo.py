"""DeMo: an optimizer that takes its steps from the exchange of the largest coefficients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradcomp_torch.dion import Dion

__all__ = ["DeMo"]


class DeMo(Dion):
    """Applies the steps of the algorithm ``demo``; all other parameters have Lion.

    It is `Dion` with the defaults of DeMo's authors. The momentum of matrices lies in the
    compression's ``state_dict()``. docs/algorithms/demo.md.

    Peng, Lester, Quesnelle, Kingma: "DeMo: Decoupled Momentum Optimization" (arXiv:2411.19870).

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
        lr: float = 0.001,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        super().__init__(params, lr, weight_decay, betas)
