"""The stock optimizer of BytePS, with compression by the plug-in library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import byteps.torch as bps
import torch

from byteps_compressors.torch.attached import ServerFeedback, attach
from gradcomp import Config
from gradcomp_torch.optimizers import check_optimizer
from gradcomp_torch.parameters import uncompiled

__all__ = ["DistributedOptimizer"]

# byteps_compressors.run replaces it in BytePS' module.
_stock_optimizer = bps.DistributedOptimizer


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    compression: str | Config = "identity",
    backward_passes_per_step: int = 1,
    *,
    server_feedback: ServerFeedback = "auto",
) -> Any:
    """Call `attach`, and wrap the optimizer in the stock ``bps.DistributedOptimizer``.

    The result has an additional attribute ``compression``, an `Attached`.

    Args:
        optimizer: a local optimizer.
        named_parameters: as for `attach`.
        compression: as for `attach`.
        backward_passes_per_step: as for ``bps.DistributedOptimizer``.
        server_feedback: as for `attach`.

    Raises:
        ConfigError: both the spec and the optimizer apply momentum; or as for `attach`.
        ProtocolError: as for `attach`.
    """
    config = Config.of(compression, measures=False)
    named = uncompiled(named_parameters)
    check_optimizer(config, optimizer)
    attached = attach(named, config, server_feedback=server_feedback)
    wrapped = _stock_optimizer(
        optimizer,
        named_parameters=named,
        backward_passes_per_step=backward_passes_per_step,
    )
    wrapped.compression = attached
    attached.read_rates(wrapped)
    attached.check_after_steps(wrapped)
    return wrapped
