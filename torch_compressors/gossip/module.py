"""Base class of modules that differ between ranks: hooks, averages, flat parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from gradcomp.adapter_api import FloatArray
from gradcomp.errors import GradcompError
from gradcomp.gossip import Topology, Traffic
from torch_compressors.gossip.transport import check_times, naming_the_lost

__all__ = ["DecentralizedModule"]


class DecentralizedModule(nn.Module, ABC):
    """Base class of `GossipDataParallel` and `AsyncGossipDataParallel`.

    Args:
        module: parameters that require gradients must be floating.
        timeout, retries: see `Transport`; they also limit waits in the methods of this class.

    Raises:
        GradcompError: there is no process group, or a parameter is not floating.
    """

    def __init__(self, module: nn.Module, timeout: float, retries: int) -> None:
        super().__init__()
        if not dist.is_initialized():
            raise GradcompError(
                "torch.distributed is not initialized: call "
                "torch_compressors.init_process_group() first, and start ranks with torchrun or "
                "horovodrun"
            )
        self.module = module
        self._parameters_by_name = {
            name: one for name, one in module.named_parameters() if one.requires_grad
        }
        for name, one in self._parameters_by_name.items():
            if not one.is_floating_point():
                raise GradcompError(f"parameter '{name}' is of {one.dtype}; it must be floating")
        self._limit: timedelta = check_times(timeout, retries)
        self._control = dist.new_group(backend="gloo", timeout=self._limit)
        self._attached = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)

    def attach(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Gossip after each step of ``optimizer``, of the module's parameters; returns it.

        Raises:
            GradcompError: an optimizer is attached already.
        """
        if self._attached:
            raise GradcompError(
                "an optimizer is attached already: give one optimizer several parameter groups"
            )
        self._attached = True
        optimizer.register_step_pre_hook(lambda *_: self._before_step())
        optimizer.register_step_post_hook(lambda *_: self._after_step())
        return optimizer

    @abstractmethod
    def _before_step(self) -> None: ...

    @abstractmethod
    def _after_step(self) -> None: ...

    @property
    @abstractmethod
    def topology(self) -> Topology:
        """The peers of each rank."""

    @property
    @abstractmethod
    def traffic(self) -> Traffic:
        """Traffic of this rank with peers."""

    @property
    def node_traffic(self) -> Traffic:
        """Traffic of this rank inside its node, if the ranks of a node share one model."""
        return Traffic()

    @property
    def weight(self) -> float:
        """w of push-sum; 1 for other algorithms."""
        return 1.0

    @abstractmethod
    def synchronize(self) -> None:
        """End all exchanges under way; every rank must call this.

        To be called before a checkpoint and at the end of training, so that no rank leaves while
        others wait for it.

        Raises:
            PeerError: a rank has died, or does not call this in time.
        """

    @abstractmethod
    def gossip_state_dict(self) -> dict[str, Any]:
        """State of this rank besides its `state_dict`: numbers and tensors."""

    @abstractmethod
    def load_gossip_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `gossip_state_dict`, after `load_state_dict`."""

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """A context in which the module has the average parameters and floating buffers of all ranks.

        Every rank must enter at the same step; at the end each rank gets its own values back.

        Raises:
            PeerError: a rank has died, or does not enter in time.
        """
        self.synchronize()
        tensors: list[torch.Tensor] = [*self._parameters_by_name.values()]
        tensors += [one for one in self.module.buffers() if one.is_floating_point()]
        own = [one.detach().clone() for one in tensors]
        with torch.no_grad():
            for one in tensors:
                mean = one.detach().float().cpu()
                with naming_the_lost("averaged()"):
                    dist.all_reduce(mean, group=self._control)
                one.copy_(mean / dist.get_world_size())
        try:
            yield self.module
        finally:
            with torch.no_grad():
                for one, value in zip(tensors, own, strict=True):
                    one.copy_(value)

    def consensus_distance(self) -> float:
        """sqrt(mean over ranks of |x_i - mean|^2), with x_i the parameters of rank i.

        Every rank must call this, at the same step.

        Raises:
            PeerError: a rank has died, or does not call this in time.
        """
        own = torch.from_numpy(self._read()).double()
        mean = own.clone()
        with naming_the_lost("consensus_distance()"):
            dist.all_reduce(mean, group=self._control)
            squares = (own - mean / dist.get_world_size()).square().sum().reshape(1)
            dist.all_reduce(squares, group=self._control)
        return float((squares / dist.get_world_size()).sqrt())

    def _barrier(self) -> None:
        with naming_the_lost("synchronize()"):
            dist.barrier(self._control)

    def _take_over_rank_0(self) -> None:
        with torch.no_grad():
            for one in [*self.module.parameters(), *self.module.buffers()]:
                value = one.detach().cpu()
                dist.broadcast(value, 0, group=self._control)
                one.copy_(value)

    def _read(self) -> FloatArray:
        """A copy of the module's parameters, flat float32."""
        parts = [one.detach().reshape(-1).float() for one in self._parameters_by_name.values()]
        if not parts:
            return np.empty(0, np.float32)
        flat: FloatArray = torch.cat(parts).cpu().numpy()
        return flat

    @torch.no_grad()
    def _write(self, flat: FloatArray) -> None:
        values = torch.from_numpy(flat)
        begin = 0
        for one in self._parameters_by_name.values():
            one.copy_(values[begin : begin + one.numel()].view_as(one))
            begin += one.numel()
