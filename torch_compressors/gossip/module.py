"""Base class of modules that differ between ranks: hooks, averages, flat parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from gradcomp.adapter_api import Checkpoints, FloatArray, build_text, model_text
from gradcomp.errors import GradcompError
from gradcomp.gossip import Topology, Traffic
from gradcomp_torch.parameters import check_unsharded, kinds_of, uncompiled_name
from torch_compressors.gloo.gather import gather_bytes
from torch_compressors.gloo.liveness import naming_the_absent
from torch_compressors.gloo.process_group import use_own_processors
from torch_compressors.gossip.agreement import agree, check_equal_tensors, setting_text
from torch_compressors.gossip.checkpoints import average_of, module_state, module_tensors
from torch_compressors.gossip.groups import GossipGroups
from torch_compressors.gossip.transport import check_times, naming_the_lost

__all__ = ["DecentralizedModule"]


class DecentralizedModule(nn.Module, ABC):
    """Base class of `GossipDataParallel` and `AsyncGossipDataParallel`.

    Args:
        module: parameters that require gradients must be floating.
        timeout, retries: see `Transport`; they also limit waits in the methods of this class.
        arguments: the subclass' other arguments by name, which must be equal on all ranks.

    Raises:
        GradcompError: there is no process group, or a parameter is not floating.
        ProtocolError: the ranks' models or arguments differ.
    """

    _check_replicas_every = 0

    def __init__(
        self, module: nn.Module, timeout: float, retries: int, arguments: Mapping[str, Any]
    ) -> None:
        super().__init__()
        if not dist.is_initialized():
            raise GradcompError(
                "torch.distributed is not initialized: call "
                "torch_compressors.init_process_group() first, and start ranks with torchrun or "
                "horovodrun"
            )
        self.module = module
        self._parameters_by_name = {
            uncompiled_name(name): parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self._limit = check_times(timeout, retries)
        self._control = GossipGroups([range(dist.get_world_size())], self._limit)
        self._attached = False
        self._texts = {name: setting_text(value) for name, value in arguments.items()}
        agree(self._settings, self._control, self._where)
        use_own_processors()

    @property
    def _where(self) -> str:
        return type(self).__name__

    def _settings(self) -> dict[str, str]:
        """Settings that must be equal on all ranks.

        Raises:
            GradcompError: a parameter is not floating, or sharded.
        """
        check_unsharded(self._parameters_by_name.items())
        for name, parameter in self._parameters_by_name.items():
            if not parameter.is_floating_point():
                raise GradcompError(
                    f"parameter '{name}' is of {parameter.dtype}; it must be floating"
                )
        module = self.module
        trained = self._parameters_by_name.items()
        return {
            "version": build_text(),
            "wrapper": self._where,
            "trained parameters": _text_of(trained),
            "all parameters": _text_of(module.named_parameters()),
            "buffers": _text_of(module.named_buffers()),
            **self._texts,
        }

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

    def close(self) -> None:
        """Give the process groups to the next such module of the job.

        Call it after the last `synchronize`; without a call it happens when Python frees the module. Further
        steps and averages raise a `StateError`, and the model can still be read. Ranks may call it at
        different times. After an exchange that has failed, its groups are not used again.
        """
        self._control.close()

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
            ProtocolError: with ``check_replicas_every``, the averages or the parameters that are
                not trained differ between ranks.
        """
        self.synchronize()
        tensors: list[torch.Tensor] = [*self._parameters_by_name.values()]
        tensors += [buffer for buffer in self.module.buffers() if buffer.is_floating_point()]
        own_values = [tensor.detach().clone() for tensor in tensors]
        with torch.no_grad():
            for tensor in tensors:
                mean = tensor.detach().float().cpu()
                with naming_the_lost("averaged()"), self._control.request() as group:
                    dist.all_reduce(mean, group=group)
                tensor.copy_(mean / dist.get_world_size())
        try:
            if self._check_replicas_every:
                with naming_the_lost("averaged()"):
                    check_equal_tensors(self._averaged(), self._control, "in averaged()")
            yield self.module
        finally:
            with torch.no_grad():
                for tensor, value in zip(tensors, own_values, strict=True):
                    tensor.copy_(value)

    def _averaged(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that are equal on all ranks inside `averaged`."""
        yield from self.module.named_parameters()
        for name, buffer in self.module.named_buffers():
            if buffer.is_floating_point():
                yield name, buffer

    # Checkpoints --------------------------------------------------------------------------------

    def save(self, directory: str | Path, step: int, keep: int = 3) -> Path:
        """Write each rank's model and state of gossip; every rank must call it, at the same step.

        Ends all exchanges first, as `synchronize` does. Arguments, result and errors are those of
        `gradcomp.runtime.state.checkpointed.Checkpointed.save`. Optimizers are not included.

        Raises:
            StateError: also if the module's ``state_dict`` has entries that are not dense tensors.
        """
        self._assemble("save()")
        state: dict[str, Any] = {}

        def collect() -> None:
            state["module"] = module_state(self.module)
            state["gossip"] = self._gossip_arrays()

        self._checkpoints.together(collect)
        return self._checkpoints.save(directory, step, keep, state)

    def load(
        self, directory: str | Path, step: int | None = None, *, missing_ok: bool = False
    ) -> int:
        """Continue from a checkpoint of `save`; every rank must call it, between two steps.

        Arguments, result and errors are those of `gradcomp.runtime.state.checkpointed.Checkpointed.load`. On
        another number of ranks, or of ranks per node, every rank begins with the mean of the saved
        models, each with de-biased parameters, and with a state of gossip without memories.
        Floating tensors of ``state_dict`` are averaged, in float64; others are those of rank 0.

        Raises:
            StateError: also if the checkpoint is of another model, algorithm or, for Choco,
                topology.
        """
        self._assemble("load()")
        if missing_ok and not self._checkpoints.exist(directory):
            return 0
        loaded = self._checkpoints.load(directory, step)
        self._checkpoints.together(lambda: self._take(loaded.states))
        return loaded.step

    def _assemble(self, call: str) -> None:
        """End all exchanges; names the ranks that do not come to ``call``."""
        world = dist.group.WORLD
        assert world is not None  # checked in the constructor
        with naming_the_absent(world, call, warns=True):
            self.synchronize()
            self._checkpoints.together(lambda: None)

    def _take(self, states: dict[str, Any] | list[dict[str, Any]]) -> None:
        if isinstance(states, list):
            models = [module_tensors(self.module, state.get("module")) for state in states]
            self._begin_with(average_of(models), [state.get("gossip") for state in states])
        else:
            model = module_tensors(self.module, states.get("module"))
            self._continue_with(model, states.get("gossip"))

    @abstractmethod
    def _gossip_arrays(self) -> dict[str, Any]:
        """`gossip_state_dict` with arrays instead of tensors."""

    @abstractmethod
    def _continue_with(self, model: Mapping[str, torch.Tensor], gossip: Any) -> None:
        """Load a state of the same number of ranks.

        Raises:
            StateError: the state of gossip does not fit; nothing has changed.
        """

    @abstractmethod
    def _begin_with(self, model: Mapping[str, torch.Tensor], of_ranks: list[Any]) -> None:
        """Load the model, and forget all memories.

        Args:
            of_ranks: the states of gossip of all ranks of the checkpoint.

        Raises:
            StateError: a state of gossip is malformed; nothing has changed.
        """

    @property
    def _ranks_per_node(self) -> int:
        return 1

    @cached_property
    def _checkpoints(self) -> Checkpoints:
        control = self._control  # without a reference to this module, which would make a cycle

        def gather(data: bytes) -> list[bytes]:
            with naming_the_lost("a checkpoint"), control.request() as group:
                return gather_bytes(data, group)

        text = ", ".join(f"{name} {value}" for name, value in self._texts.items())
        return Checkpoints(
            dist.get_rank(), dist.get_world_size(), self._ranks_per_node, text, gather
        )

    def consensus_distance(self) -> float:
        """sqrt(mean over ranks of |x_i - mean|^2), with x_i the parameters of rank i.

        Every rank must call this, at the same step.

        Raises:
            PeerError: a rank has died, or does not call this in time.
        """
        own_values = torch.from_numpy(self._read()).double()
        mean = own_values.clone()
        with naming_the_lost("consensus_distance()"), self._control.request() as group:
            dist.all_reduce(mean, group=group)
            squares = (own_values - mean / dist.get_world_size()).square().sum().reshape(1)
            dist.all_reduce(squares, group=group)
        return float((squares / dist.get_world_size()).sqrt())

    def _barrier(self) -> None:
        with naming_the_lost("synchronize()"), self._control.request() as group:
            dist.barrier(group)

    def _take_over_rank_0(self) -> None:
        with torch.no_grad(), self._control.request() as group:
            for tensor in [*self.module.parameters(), *self.module.buffers()]:
                value = tensor.detach().cpu()
                dist.broadcast(value, 0, group=group)
                tensor.copy_(value)

    def _read(self) -> FloatArray:
        """A copy of the module's parameters, flat float32."""
        parts = [
            parameter.detach().reshape(-1).float()
            for parameter in self._parameters_by_name.values()
        ]
        if not parts:
            return np.empty(0, np.float32)
        flat: FloatArray = torch.cat(parts).cpu().numpy()
        return flat

    @torch.no_grad()
    def _write(self, flat: FloatArray) -> None:
        values = torch.from_numpy(flat)
        begin = 0
        for parameter in self._parameters_by_name.values():
            parameter.copy_(values[begin : begin + parameter.numel()].view_as(parameter))
            begin += parameter.numel()


def _text_of(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    tensors = {uncompiled_name(name): tensor for name, tensor in named}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return model_text(shapes, kinds_of(tensors.items()))
