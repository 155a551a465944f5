"""Training with outer steps: every rank trains alone, and the ranks average their changes at times.

::

    outer = OuterStep("int4", model, every=30)
    for batch in loader:
        loss(model, batch).backward()
        optimizer.step()
        outer.step()
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradcomp import Config
from gradcomp.adapter_api import (
    Collector,
    Driver,
    OuterOptions,
    Pipeline,
)
from gradcomp.errors import ConfigError
from gradcomp_torch.outer import ParameterValues, TensorOuterSteps
from gradcomp_torch.parameters import is_sharded, parameter_bytes
from torch_compressors.gloo.engine import Closing, GlooEngine, message_limit
from torch_compressors.gloo.gather import gather_bytes, gather_texts
from torch_compressors.gloo.liveness import naming_the_absent
from torch_compressors.gloo.nodes import agreed_ranks_per_node, exchange_groups
from torch_compressors.gloo.process_group import use_own_processors

__all__ = ["OuterStep"]


class OuterStep(Closing, TensorOuterSteps):
    """Outer steps on torch.distributed; see `gradcomp.runtime.outer.steps.OuterSteps`.

    Every rank must construct it at the same time; parameters and buffers of the first rank are then
    everyone's. Buffers differ between ranks afterwards, as each rank's batches do.

    Args:
        config: a spec for all pseudo-gradients that are not small, or a `gradcomp.Config`.
        model: its trainable parameters must be floating; sums are float32. A module; or with
            ``two_level`` a DistributedDataParallel over the ranks of this node; or an FSDP2 model,
            see ``process_group``; or pairs of name and parameter, whose buffers stay as they are.
        every, options: settings of `gradcomp.runtime.outer.options.OuterOptions`.
        process_group: the ranks that average; None for all. For an FSDP2 model, the ranks that hold
            the same shards.
        timeout: see `torch_compressors.ddp_hook`.

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
        process_group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
        **options: Any,
    ) -> None:
        self.config = Config.of(config, measures=False)
        chosen = OuterOptions.of(self.config, every, **options)
        world = process_group or dist.group.WORLD
        assert world is not None
        self._world = world
        named = list(model.named_parameters() if isinstance(model, torch.nn.Module) else model)
        _check_shards(named, world)
        values = ParameterValues(named)
        with naming_the_absent(world, "OuterStep"):
            size = agreed_ranks_per_node(self.config, world, values.shapes, values.kinds)
            chosen.check_same(gather_texts(chosen.text(), world))
        _check_ddp(model, world, size)
        use_own_processors()
        pipeline = self._pipeline = Pipeline(self.config, world.rank(), world.size(), size)
        limit = message_limit(
            map(math.prod, values.shapes.values()), self.config.compress.bucket_bytes
        )
        gloo = self._gloo = GlooEngine(exchange_groups(world, size, timeout), limit, "OuterStep")
        buffers = model.buffers() if isinstance(model, torch.nn.Module) else ()
        for tensor in [*(parameter for _, parameter in values.named()), *buffers]:
            dist.broadcast(tensor.detach(), dist.get_process_group_ranks(world)[0], world)
        self._collector = Collector(
            Driver(pipeline.profiled(gloo, "torch.distributed")),
            pipeline,
            values.shapes,
            overwrite=True,
            parameters=lambda: parameter_bytes(values.named()),
        )
        super().__init__(chosen, values)

    def _gather_bytes(self, data: bytes) -> Sequence[bytes]:
        return gather_bytes(data, self._world)

    def _attended(self, call: str) -> AbstractContextManager[None]:
        return naming_the_absent(self._world, call, warns=True)


def _check_shards(named: Iterable[tuple[str, torch.Tensor]], world: dist.ProcessGroup) -> None:
    """Refuse to average different shards of a parameter."""
    averaging = dist.get_process_group_ranks(world)
    for name, parameter in named:
        if not is_sharded(parameter):
            continue
        mesh: Any = parameter
        sharing = mesh.device_mesh.mesh.flatten().tolist()
        if set(sharing) & set(averaging) != {dist.get_rank()}:
            raise ConfigError(
                f"'{name}' is sharded over ranks {sharing}, and ranks {averaging} would average their "
                "different parts: give OuterStep the process_group of the ranks that hold the same "
                "shards, such as mesh['replicas'].get_group()"
            )


def _check_ddp(model: object, world: dist.ProcessGroup, ranks_per_node: int) -> None:
    """Refuse a DDP model that averages gradients over more than the ranks of this node."""
    if not isinstance(model, DistributedDataParallel):
        return
    ranks = dist.get_process_group_ranks(world)
    first = world.rank() // ranks_per_node * ranks_per_node
    node = ranks[first : first + ranks_per_node]
    averaged = dist.get_process_group_ranks(model.process_group)
    if averaged != node:
        raise ConfigError(
            f"the model is a DistributedDataParallel, which averages every gradient over ranks "
            f"{averaged}: give OuterStep the module itself; or compress.exchange: two_level and a "
            f"DistributedDataParallel with a process_group of the ranks of this node, here {node}"
        )
