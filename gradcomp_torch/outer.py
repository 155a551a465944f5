"""Outer steps of PyTorch models: parameters, and states with tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from gradcomp.adapter_api import FloatArray, OuterSteps
from gradcomp.errors import ConfigError
from gradcomp_torch.parameters import is_sharded, kinds_of, uncompiled
from gradcomp_torch.state import as_array

__all__ = ["ParameterValues", "TensorOuterSteps"]


class ParameterValues:
    """The trainable parameters of a model; of a sharded model, this rank's shards.

    Args:
        named_parameters: pairs of name and parameter, as ``model.named_parameters()`` gives them.

    Attributes:
        shapes: by name; without parameters that have no element on this rank.
        kinds: dtypes by name.
        rounds: whether any parameter is not float32.

    Raises:
        ConfigError: a trainable parameter is not floating.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        named = {name: _local(p) for name, p in uncompiled(named_parameters) if p.requires_grad}
        self._tensors = {name: tensor for name, tensor in named.items() if tensor.numel()}
        for name, tensor in self._tensors.items():
            if not tensor.is_floating_point():
                raise ConfigError(f"'{name}' is of {tensor.dtype}; parameters must be floating")
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: tuple(tensor.shape) for name, tensor in self._tensors.items()
        }
        self.kinds = kinds_of(self._tensors.items())
        self.rounds = any(tensor.dtype != torch.float32 for tensor in self._tensors.values())

    def named(self) -> list[tuple[str, torch.Tensor]]:
        """Names and tensors."""
        return list(self._tensors.items())

    def read(self, name: str) -> FloatArray:
        """See `gradcomp.runtime.outer.steps.Values`."""
        array: FloatArray = self._tensors[name].to("cpu", torch.float32).reshape(-1).numpy()
        return array

    @torch.no_grad()
    def write(self, name: str, value: FloatArray) -> None:
        """See `gradcomp.runtime.outer.steps.Values`."""
        tensor = self._tensors[name]
        tensor.copy_(torch.from_numpy(value).view(tensor.shape))

    def keep(self, name: str) -> torch.Tensor:
        """See `gradcomp.runtime.outer.steps.Values`."""
        return self._tensors[name].clone()

    @torch.no_grad()
    def put_back(self, name: str, kept: torch.Tensor) -> None:
        """See `gradcomp.runtime.outer.steps.Values`."""
        self._tensors[name].copy_(kept)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """The elements that this rank holds."""
    detached: Any = parameter.detach()
    local: torch.Tensor = detached.to_local() if is_sharded(detached) else detached
    return local


class TensorOuterSteps(OuterSteps):
    """Outer steps with states of CPU tensors, which ``torch.load`` reads with ``weights_only``."""

    def state_dict(self) -> dict[str, Any]:
        """See `OuterSteps.state_dict`; with CPU tensors instead of arrays."""
        state: dict[str, Any] = _each(super().state_dict(), _as_tensor)
        return state

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """See `OuterSteps.load_state_dict`; also of states with tensors of any device."""
        super().load_state_dict(_each(state, as_array))


def _as_tensor(value: Any) -> Any:
    return torch.from_numpy(value) if hasattr(value, "__array__") else value


def _each(state: Any, function: Any) -> Any:
    """A state with ``function`` applied to its leaves."""
    if isinstance(state, Mapping):
        return {name: _each(value, function) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return [_each(value, function) for value in state]
    return function(state)
