"""Training with outer steps on Horovod: ranks train alone, and average their changes at times.

::

    outer = OuterStep("int4", model, every=30)
    for batch in loader:
        loss(model, batch).backward()
        optimizer.step()  # a plain optimizer
        outer.step()
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import horovod.torch as hvd
import torch

from gradcomp import Config
from gradcomp_torch.outer import ParameterValues, TensorOuterSteps
from gradcomp_torch.parameters import check_unsharded
from horovod_compressors.outer import HorovodOuterSteps
from horovod_compressors.torch.compression import Compression

__all__ = ["OuterStep"]


class OuterStep(HorovodOuterSteps, TensorOuterSteps):
    """Outer steps on Horovod with PyTorch; see `gradcomp.runtime.outer.steps.OuterSteps`.

    Every rank must construct it at the same time; parameters and buffers of the first rank are then
    everyone's. The inner optimizer must not be a ``hvd.DistributedOptimizer``.

    Args:
        config: a spec for all pseudo-gradients that are not small, or a `gradcomp.Config`.
        model: a module; or pairs of name and parameter, if it has no buffers. Its trainable
            parameters must be floating; sums are float32.
        every, options: settings of `gradcomp.runtime.outer.options.OuterOptions`.
        process_set: the ranks that average.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: an argument does not fit; see `OuterOptions.of`.
        ProtocolError: the ranks have different arguments or models.
    """

    def __init__(
        self,
        config: str | Config,
        model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]],
        *,
        every: int = 30,
        process_set: Any = hvd.global_process_set,
        **options: Any,
    ) -> None:
        named = list(model.named_parameters() if isinstance(model, torch.nn.Module) else model)
        buffers = [*model.named_buffers()] if isinstance(model, torch.nn.Module) else []
        check_unsharded(named)
        values = ParameterValues(named)
        compression = Compression(config, values.named(), process_set)
        chosen = self._agree(compression, values, values.kinds, every, options)
        handles = [
            hvd.broadcast_async_(tensor, process_set.ranks[0], f"outer.{name}", process_set)
            for name, tensor in [*values.named(), *buffers]
        ]
        for handle in handles:
            hvd.synchronize(handle)
        super().__init__(chosen, values)
