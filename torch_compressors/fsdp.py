"""Compression between machines, where ``fully_shard`` shards a model inside of each (HSDP).

::

    mesh = init_device_mesh("cpu", (machines, ranks), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    state = fsdp_hook("residual|topk(ratio=0.01)", model, mesh.get_group("replicate"))
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from gradcomp import Config
from gradcomp.adapter_api import Driver, Pipeline, agreement_line, check_agreement
from gradcomp.errors import ConfigError
from torch_compressors.gloo import GlooEngine
from torch_compressors.shared.dgc_sgd import check_optional
from torch_compressors.shared.state import TensorControls

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

    Args:
        config: a spec for all of them, or a `gradcomp.Config`; the same on every rank.
        model: sharded over the ranks of one machine each.
        group: the ranks that hold the same shard, one on each machine.
        optimizer: of the model. Required where the spec applies the momentum (``dgc``), to make
            sure that the optimizer does not.
        timeout: as of `ddp_hook`.

    Returns:
        The state, which has `state_dict`, `set_epoch` and `stats`.

    A rank's shard of all parameters of a module is compressed as a matrix of one row, under the
    name of the module, or "model". Low-rank specs find nothing to compress there. Each
    exchange ends before the backward pass goes on.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: the model is not sharded, or the configuration asks for ``policy: auto``,
            ``two_level`` or a profile, or the optimizer applies the momentum too.
        ProtocolError: the ranks run different compression or different models.
    """
    return FSDPCompression(config, model, group, optimizer, timeout)


class FSDPCompression(TensorControls):
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
        sharded = {
            name or "model": module
            for name, module in model.named_modules()
            if isinstance(module, FSDPModule)
        }
        if not sharded:
            raise ConfigError(
                f"no part of the model, a {type(model).__name__}, is sharded: call "
                "torch.distributed.fsdp.fully_shard first"
            )
        check_optional(self.config, optimizer, "fsdp_hook")
        problem = None
        if self.config.compress.two_level:
            problem = "compress.exchange: two_level is for ddp_hook; here fully_shard averages "
            problem += "inside of machines: remove it"
        elif self.config.stats.profile is not None:
            problem = "stats.profile is for ddp_hook: nobody tells fsdp_hook when a step begins; "
            problem += "remove it"
        shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
        lines = [""] * group.size()
        dist.all_gather_object(lines, agreement_line(self.config, shapes, problem), group=group)
        check_agreement(lines)
        self._pipeline = Pipeline(self.config, group.rank(), group.size(), 1)
        if self._pipeline.measures:
            raise ConfigError("compress.policy: auto is for ddp_hook; fsdp_hook takes specs alone")
        ranks = dist.get_process_group_ranks(group)
        own = dist.new_group(ranks, timeout, "gloo", use_local_synchronization=True)
        self._driver = Driver(GlooEngine({"all": own}))
        for name, module in sharded.items():
            module.set_all_reduce_hook(partial(self._average, name))

    @property
    def pipeline(self) -> Pipeline:
        """See `gradcomp.runtime.controls.Controls`."""
        return self._pipeline

    @torch.no_grad()
    def _average(self, name: str, shard: torch.Tensor) -> None:
        """Average a shard in place; `fully_shard` calls it, in the same order on every rank."""
        flat = shard.detach().reshape(1, -1).float().cpu().numpy()
        average = self._driver.run(self._pipeline.round(name, flat, shard.nbytes))
        shard.copy_(torch.from_numpy(average).view_as(shard))
