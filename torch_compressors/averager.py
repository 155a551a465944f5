"""Averages of gradients for a training loop of torch.distributed without DistributedDataParallel.

::

    averager = GradientAverager("residual|adaptive(rate=1)", model.named_parameters())
    for batch in loader:
        optimizer.zero_grad()
        loss(model, batch).backward()
        averager.average()
        optimizer.step()
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from gradcomp import Config
from gradcomp.adapter_api import AllReduce, Collector, Driver, FloatArray, Pipeline, Route
from gradcomp.errors import ConfigError
from gradcomp_torch.optimizers import check_optional
from gradcomp_torch.parameters import check_real, kinds_of, parameter_bytes, uncompiled
from gradcomp_torch.rates import rates_of
from gradcomp_torch.staging import refuse_recording
from torch_compressors.gloo.engine import (
    SUMMABLE_DTYPES,
    Closing,
    GlooEngine,
    dense_round,
    message_limit,
)
from torch_compressors.gloo.gather import gather_bytes
from torch_compressors.gloo.liveness import naming_the_absent
from torch_compressors.gloo.nodes import agreed_ranks_per_node, exchange_groups
from torch_compressors.gloo.process_group import use_own_processors
from torch_compressors.scaler import ScalerControls

__all__ = ["GradientAverager"]


class GradientAverager(Closing, ScalerControls):
    """Replaces each ``.grad`` by its average over the ranks, after the backward pass.

    For loops that have no wrapper around the model. With a wrapper, `ddp_hook` averages during the backward
    pass. Gradients on a GPU go through the host.

    Every rank must construct it at the same time. Parameters are not synchronized: give all ranks the same
    ones, as by an equal seed or ``dist.broadcast``.

    Args:
        config: a spec for all tensors that are not small, or a `gradcomp.Config`.
        named_parameters: ``model.named_parameters()``; those that need no gradient are left out.
        optimizer: see `torch_compressors.ddp_hook`.
        process_group: the ranks that average; None for all.
        timeout: see `torch_compressors.ddp_hook`.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: there is no parameter, one is complex, or the optimizer applies the momentum, too.
        ProtocolError: the ranks run different compression or different models.
    """

    def __init__(
        self,
        config: str | Config,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        optimizer: torch.optim.Optimizer | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        self.config = Config.of(config)
        check_optional(self.config, optimizer, "GradientAverager")
        named = uncompiled(named_parameters)
        self._parameters = {name: parameter for name, parameter in named if parameter.requires_grad}
        if not self._parameters:
            raise ConfigError(
                "GradientAverager got no parameter that needs a gradient: give it "
                "model.named_parameters(), and thaw the parameters before"
            )
        check_real(self._parameters.items(), "GradientAverager")
        self._optimizer = optimizer
        world = process_group or dist.group.WORLD
        if world is None:
            raise ConfigError("there is no process group: call dist.init_process_group() before")
        self._world = world
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}
        kinds = kinds_of(self._parameters.items())
        with naming_the_absent(world, "GradientAverager"):
            size = agreed_ranks_per_node(self.config, world, shapes, kinds)
        use_own_processors()
        self.pipeline = Pipeline(self.config, world.rank(), world.size(), size)  # type: ignore[misc]
        limit = message_limit(map(math.prod, shapes.values()), self.config.compress.bucket_bytes)
        groups = exchange_groups(world, size, timeout)
        self._gloo = GlooEngine(groups, limit, "GradientAverager")
        self._driver = Driver(self.pipeline.profiled(self._gloo, "torch.distributed"))
        self._collector = Collector(
            self._driver,
            self.pipeline,
            shapes,
            overwrite=True,
            parameters=lambda: parameter_bytes(self._parameters.items()),
        )

    def average(self) -> None:
        """Replace the gradients by their averages; every rank must call it, once in a step.

        A gradient that is None on this rank counts as zeros. If it is None on all ranks, it stays None, and the
        parameter's memory as it is.

        Raises:
            ConfigError: a gradient is sparse, or a CUDA graph is recorded.
            ProtocolError: another rank does not answer, or is at another step.
        """
        first = next(iter(self._parameters.values()))
        refuse_recording(first.device, "GradientAverager.average()")
        self._check_dense()
        self._follow_scale()
        if self._optimizer is not None and self.config.scales_lr:
            names = {parameter: name for name, parameter in self._parameters.items()}
            self.set_lr(rates_of(self._optimizer, names))
        self._report(self._collector.begin_step())
        used = np.array([p.grad is not None for p in self._parameters.values()], np.float32)
        unused = [name for name, p in self._parameters.items() if p.grad is None]
        self.pipeline.last_step.keep(unused)
        with torch.no_grad():
            for name, parameter in reversed(self._parameters.items()):
                self._start(name, parameter)
            self.stats.count("allreduce", used.nbytes)
            request = self._driver.post(AllReduce("step.used", used))
            averages = dict(
                zip(self._parameters, self._collector.averages(self._parameters), strict=True)
            )
            share: FloatArray = self._driver.reply(request)
            dropped = [name for name, part in zip(self._parameters, share, strict=True) if not part]
            self.pipeline.last_step.put_back(dropped)
            for name in self._parameters.keys() - set(dropped):
                self._give(self._parameters[name], averages[name])
        self._collector.end_step()

    def optimizer_step(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Average the gradients, and make the optimizer's step.

        Args:
            optimizer: None for that of the constructor.

        Raises:
            ConfigError: there is no optimizer; see also `average`.
        """
        optimizer = optimizer or self._optimizer
        if optimizer is None:
            raise ConfigError(
                "optimizer_step() has no optimizer: pass one here or to GradientAverager"
            )
        self.average()
        optimizer.step()

    def _check_dense(self) -> None:
        """Refuse sparse gradients, before anything is sent."""
        for name, parameter in self._parameters.items():
            grad = parameter.grad
            if grad is not None and grad.layout != torch.strided:
                raise ConfigError(
                    f"the gradient of '{name}' has the layout {grad.layout}: make the layer's gradient "
                    "dense, as nn.Embedding(sparse=False) does"
                )

    def _start(self, name: str, parameter: torch.Tensor) -> None:
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        resolved = self._collector.resolve(name, tuple(grad.shape))
        route = self._collector.route(resolved, sums_dtype=grad.dtype in SUMMABLE_DTYPES)
        if route is Route.DENSE:
            self.pipeline.count_dense({name: grad.nbytes})
            array = grad.detach().cpu().contiguous().reshape(-1).numpy()
            self._driver.start(name, dense_round(name, [array], [array]), [name])
        else:
            array = grad.detach().to("cpu", torch.float32).contiguous().numpy()
            self._collector.add(resolved, array, grad.nbytes)

    def _give(self, parameter: torch.Tensor, average: FloatArray) -> None:
        result = torch.from_numpy(average).view(parameter.shape)
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        if parameter.grad.data_ptr() != result.data_ptr():  # else already in place
            parameter.grad.copy_(result)

    def _gather_bytes(self, data: bytes) -> Sequence[bytes]:
        return gather_bytes(data, self._world)

    def _attended(self, call: str) -> AbstractContextManager[None]:
        return naming_the_absent(self._world, call, warns=True)
