"""Compression between machines for models that ``fully_shard`` shards inside each machine (HSDP).

::

    mesh = init_device_mesh("cpu", (machines, ranks), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    state = fsdp_hook("residual|topk(ratio=0.01)", model, mesh.get_group("replicate"))
"""

from __future__ import annotations

import math
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from gradcomp import Config
from gradcomp.adapter_api import Driver, Pipeline, agreement_line, check_agreement
from gradcomp.errors import ConfigError
from torch_compressors.fsdp.sharded import ShardedControls, sharded_modules
from torch_compressors.gather import gather_texts
from torch_compressors.gloo import GlooEngine, message_limit
from torch_compressors.roll_call import naming_the_absent
from torch_compressors.shared.optimizers import check_optional
from torch_compressors.shared.parameters import uncompiled_name

__all__ = ["FSDPCompression", "fsdp_hook"]


def fsdp_hook(
    config: str | Config,
    model: torch.nn.Module,
    group: dist.ProcessGroup,
    optimizer: torch.optim.Optimizer | None = None,
    timeout: timedelta | None = None,
) -> FSDPCompression:
    """Average gradients between the ranks of ``group``, compressed, after each reduce-scatter.

    Sets the all-reduce hook of every module that ``fully_shard`` has wrapped. Every rank must call
    it.

    A rank's shard of all parameters of a module is compressed as a matrix of one row, [1, numel],
    under the module's name (see `sharded_modules`). Low-rank specs compress nothing there. Each
    exchange ends before the backward pass continues.

    Args:
        config: a spec for all modules, or a `gradcomp.Config`; the same on every rank.
        model: sharded over the ranks of each machine.
        group: the ranks that hold the same shard, one on each machine.
        optimizer: the model's optimizer. Required if the spec applies the momentum (``dgc``), to
            check that the optimizer does not.
        timeout: see `torch_compressors.ddp_hook`.

    Returns:
        The state, which has `save`, `load`, `set_epoch` and `stats`.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: the model is not sharded, the configuration has ``policy: auto``,
            ``two_level`` or a profile, or the optimizer applies the momentum, too.
        ProtocolError: the ranks run different compression or different models.
    """
    return FSDPCompression(config, model, group, optimizer, timeout)


class FSDPCompression(ShardedControls):
    """The compression of one model's shards on this rank; made by `fsdp_hook`."""

    def __init__(
        self,
        config: str | Config,
        model: torch.nn.Module,
        group: dist.ProcessGroup,
        optimizer: torch.optim.Optimizer | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        self.config = Config.from_spec(config) if isinstance(config, str) else config
        sharded = sharded_modules(model)
        check_optional(self.config, optimizer, "fsdp_hook")
        problem = None
        if self.config.compress.two_level:
            problem = "compress.exchange: two_level is for ddp_hook; here fully_shard averages "
            problem += "inside of machines: remove it"
        elif self.config.stats.profile is not None:
            problem = "stats.profile is for ddp_hook: fsdp_hook does not know when a step begins; "
            problem += "remove it"
        elif self.config.step_algorithm is not None:
            problem = f"'{self.config.step_algorithm.text}' is for ddp_hook: such steps need whole "
            problem += "matrices, and fully_shard cuts them"
        elif self.config.check_replicas_every:
            problem = "check_replicas_every is for ddp_hook: shards have no replicas in their own "
            problem += "machine, and fsdp_hook does not know when a step begins; remove it"
        shapes = {uncompiled_name(name): tuple(one.shape) for name, one in model.named_parameters()}
        with naming_the_absent(group, "fsdp_hook"):
            check_agreement(gather_texts(agreement_line(self.config, shapes, problem), group))
        self._pipeline = Pipeline(self.config, group.rank(), group.size(), 1)
        if self._pipeline.measures:
            raise ConfigError("compress.policy: auto is for ddp_hook; use policy: always")
        ranks = dist.get_process_group_ranks(group)
        own = dist.new_group(ranks, timeout, "gloo", use_local_synchronization=True)
        limit = message_limit([sum(map(math.prod, shapes.values()))], 0)
        self._driver = Driver(GlooEngine({"all": own}, limit, "fsdp_hook"))
        for name, module in sharded.items():
            module.set_all_reduce_hook(partial(self._average, name))

    @torch.no_grad()
    def _average(self, name: str, shard: torch.Tensor) -> None:
        """Average a shard in place; `fully_shard` calls it, in the same order on every rank."""
        flat = shard.detach().reshape(1, -1).float().cpu().numpy()
        average = self._driver.run(self._pipeline.round(name, flat, shard.nbytes))
        shard.copy_(torch.from_numpy(average).view_as(shard))
