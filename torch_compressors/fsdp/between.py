"""Compression between machines for models that ``fully_shard`` shards inside each machine (HSDP).

::

    mesh = init_device_mesh("cpu", (machines, ranks), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    state = fsdp_hook("residual|adaptive(rate=1)", model, mesh.get_group("replicate"))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from gradcomp import Config
from gradcomp.adapter_api import (
    Broadcast,
    Driver,
    Pipeline,
    StartReport,
    agreement_line,
    check_agreement,
)
from gradcomp.errors import ConfigError
from gradcomp_torch.compat import at_end_of_backward, require
from gradcomp_torch.devices import TensorArray
from gradcomp_torch.float_copies import FloatCopies
from gradcomp_torch.host_copies import to_device, to_host
from gradcomp_torch.optimizers import check_optional
from gradcomp_torch.parameters import check_real, kinds_of, uncompiled_name
from gradcomp_torch.staging import refuse_recording
from torch_compressors.fsdp.reduce_output import LateAverage, ReduceOutput
from torch_compressors.fsdp.sharded import ShardedControls, sharded_modules
from torch_compressors.fsdp.units import managed_parameters, wrapped_together
from torch_compressors.gloo.device_engine import TogetherSum, connect_devices
from torch_compressors.gloo.engine import Closing, GlooEngine, message_limit
from torch_compressors.gloo.gather import gather_texts
from torch_compressors.gloo.liveness import naming_the_absent
from torch_compressors.gloo.nodes import exchange_groups
from torch_compressors.gloo.process_group import use_own_processors

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
    under the module's name (see `sharded_modules`). Low-rank specs compress nothing there.

    An exchange runs while the backward pass goes on to earlier layers; the averages are there when
    ``backward()`` returns. A module's first exchange ends at once, and so do all others where its
    gradients are not views of the reduce-scatter's output: see `ReduceOutput`. If this changes
    later, ``backward()`` raises ConfigError.

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


class FSDPCompression(Closing, ShardedControls):
    """The compression of one model's shards on this rank; made by `fsdp_hook`."""

    def __init__(
        self,
        config: str | Config,
        model: torch.nn.Module,
        group: dist.ProcessGroup,
        optimizer: torch.optim.Optimizer | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        self.config = Config.of(config, measures=False)
        sharded = sharded_modules(model)
        check_optional(self.config, optimizer, "fsdp_hook")
        self.config.check_averages(
            "is for ddp_hook: its steps need whole matrices, and fully_shard cuts them"
        )
        problem = None
        if self.config.compress.two_level:
            problem = "compress.exchange: two_level is for ddp_hook; here fully_shard averages "
            problem += "inside of machines: remove it"
        elif self.config.stats.profile is not None:
            problem = "stats.profile is for ddp_hook: fsdp_hook does not know when a step begins; "
            problem += "remove it"
        elif self.config.check_replicas_every:
            problem = "check_replicas_every is for ddp_hook: shards have no replicas in their own "
            problem += "machine, and fsdp_hook does not know when a step begins; remove it"
        shapes = {
            uncompiled_name(name): tuple(parameter.shape)
            for name, parameter in model.named_parameters()
        }
        check_real(model.named_parameters(), "fsdp_hook")
        kinds = kinds_of((uncompiled_name(n), p) for n, p in model.named_parameters())
        with naming_the_absent(group, "fsdp_hook"):
            line = agreement_line(self.config, shapes, problem, kinds=kinds)
            check_agreement(gather_texts(line, group))
        use_own_processors()
        self._pipeline = Pipeline(self.config, group.rank(), group.size(), 1)
        if self._pipeline.policy.measures:
            raise ConfigError("compress.policy: auto is for ddp_hook; use policy: always")
        limit = message_limit([sum(map(math.prod, shapes.values()))], 0)
        gloo = self._engine = self._gloo = GlooEngine(
            exchange_groups(group, 1, timeout), limit, "fsdp_hook"
        )
        self._devices, engine = connect_devices(
            self._pipeline, gloo, group, map(_local, model.parameters()), timeout
        )
        self._driver = Driver(self._pipeline.profiled(engine, "FSDP"))
        self._messages = StartReport(self._pipeline)  # of the end
        self._together = {
            name: list(modules.values())
            for modules in wrapped_together(sharded)
            for name in modules
        }
        self._awaits: dict[str, list[DTensor]] = {}
        """By module, once known: parameters with gradients that may wait for averages, or none."""
        self._ended: dict[str, ReduceOutput] = {}
        """Exchanges of this backward pass that ended at once, of modules not yet in `_awaits`."""
        self._running: dict[str, LateAverage] = {}
        self._floats = FloatCopies()
        self._on_devices: set[str] = set()
        """Modules with a shard that a device has averaged: such exchanges end at once."""
        for name, module in sharded.items():
            require(module, "set_all_reduce_hook", "2.8", "fsdp_hook")
            module.set_all_reduce_hook(partial(self._average, name))

    @torch.no_grad()
    def _average(self, name: str, shard: torch.Tensor) -> None:
        """Average a shard in place, now or before the backward pass ends.

        `fully_shard` calls it, in the same order on every rank. Whether an exchange ends at once is
        the same on all ranks, too, as it decides about the order of requests.
        """
        refuse_recording(shard.device, "fsdp_hook")
        ends = _called_at_end(self._finish)
        if name in self._running:  # since a backward pass that has failed, or in an outer one
            self._finish_exchanges()
        parameters = self._awaits.get(name)
        if self._average_there(name, shard.detach()):
            self._on_devices.add(name)
            if parameters is None and ends:
                self._ended[name] = ReduceOutput(shard)
            return
        flat = to_host(shard.detach()).reshape(1, -1).float().numpy()
        round_ = self._pipeline.round(name, flat, shard.nbytes)
        if parameters and ends:
            late = LateAverage(name, shard, parameters)
            self._driver.start(name, round_, place=len(self._running))
            self._engine.flush()
            self._running[name] = late
            return
        average = torch.from_numpy(self._driver.run(round_))
        shard.copy_(to_device(average, shard.device).view_as(shard))
        if parameters is None and ends:
            self._ended[name] = ReduceOutput(shard)

    def _average_there(self, name: str, shard: torch.Tensor) -> bool:
        """Average a shard on its device, in place; False if the host has to.

        Messages from device to device are not waited for: what follows on the current stream is.
        """
        device = self._devices.of(shard.device)
        if device is None:
            return False
        resolved = self._pipeline.resolve(name, (1, shard.numel()))
        dense = self._devices.direct is not None and self._pipeline.sends_dense(resolved)
        if not dense and not self._pipeline.on_device(resolved, device):
            return False
        if dense:
            grad = self._floats.of({name: shard.reshape(1, -1)})[name]
            self._pipeline.count_dense({name: grad.nbytes})
            self._driver.run(TogetherSum([grad]).round(name))
            average = grad
        else:
            array = self._floats.arrays({name: shard.reshape(1, -1)}, device)[name]
            round_ = self._pipeline.round(name, array, shard.nbytes, resolved, overwrite=True)
            found: Any = self._driver.run(round_)
            average = found.tensor if isinstance(found, TensorArray) else torch.from_numpy(found)
        if average.data_ptr() != shard.data_ptr():
            shard.copy_(average.view_as(shard))
        return True

    @torch.no_grad()
    def _finish(self) -> None:
        """Complete the backward pass; the autograd engine calls it, once for each exchange."""
        self._finish_exchanges()
        if self._ended:
            self._agree()

    def _finish_exchanges(self) -> None:
        running, self._running = self._running, {}
        for name, late in running.items():
            late.arrive(torch.from_numpy(self._driver.finish(name)))

    def _agree(self) -> None:
        """Let the ranks agree on the modules with exchanges that may end later from now on."""
        ended, self._ended = self._ended, {}
        found = {name: managed_parameters(self._together[name]) for name in ended}
        waits = [
            name not in self._on_devices and ended[name].may_wait(found[name]) for name in ended
        ]
        own_waits = np.array(waits, np.uint8)
        self._pipeline.stats.count("check", own_waits.nbytes)
        of_ranks = self._driver.reply(self._driver.post(Broadcast("fsdp_hook.views", own_waits)))
        everywhere = of_ranks.reshape(-1, own_waits.size).all(axis=0)
        for (name, parameters), may_wait in zip(found.items(), everywhere, strict=True):
            self._awaits[name] = parameters if may_wait else []


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a parameter, or all of one that is not sharded."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _called_at_end(call: Callable[[], None]) -> bool:
    """Let the autograd engine make a call when its present backward pass ends.

    Callbacks run in the order of queueing: that of ``fully_shard``, which may reduce the gradients of
    further modules, comes first.

    Returns:
        False: there is no such pass. Schedules of pipelines reduce gradients after it.
    """
    try:
        at_end_of_backward(call)
    except RuntimeError:
        return False
    return True
