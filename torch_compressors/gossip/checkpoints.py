"""Modules and states in checkpoints of gossip, where every rank has its own model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from gradcomp.errors import StateError
from gradcomp_torch.parameters import uncompiled_name
from gradcomp_torch.state import as_array

__all__ = ["average_of", "module_state", "module_tensors", "with_arrays", "with_tensors"]

# Dtypes that numpy lacks travel as integers of the same size.
_INTEGERS = {1: torch.uint8, 2: torch.int16}


def module_state(module: nn.Module) -> dict[str, Any]:
    """The state of a module: arrays, and PyTorch's dtypes, by the names without ``torch.compile``.

    Raises:
        StateError: an entry of its ``state_dict`` is not a dense tensor.
    """
    tensors = {uncompiled_name(name): tensor for name, tensor in _tensors_of(module).items()}
    return {
        "tensors": {name: _array(tensor) for name, tensor in tensors.items()},
        "dtypes": {name: str(tensor.dtype) for name, tensor in tensors.items()},
    }


def module_tensors(module: nn.Module, state: Any) -> dict[str, torch.Tensor]:
    """The tensors of a result of `module_state`, for ``load_state_dict``; changes nothing.

    Raises:
        StateError: names, shapes or dtypes are not those of ``module``.
    """
    arrays = state.get("tensors") if isinstance(state, Mapping) else None
    dtypes = state.get("dtypes") if isinstance(state, Mapping) else None
    if not isinstance(arrays, Mapping) or not isinstance(dtypes, Mapping):
        raise StateError("the checkpoint has no model: load one that save() of gossip has written")
    current = {key: (uncompiled_name(key), tensor) for key, tensor in _tensors_of(module).items()}
    odd = set(arrays) ^ {name for name, _ in current.values()}
    if odd:
        listed = ", ".join(sorted(odd))
        raise StateError(f"the checkpoint is of another model: {listed} are in one of both alone")
    tensors = {}
    for key, (name, tensor) in current.items():
        array, dtype = arrays[name], dtypes.get(name)
        shape = tuple(getattr(array, "shape", ()))
        if shape != tuple(tensor.shape) or dtype != str(tensor.dtype):
            raise StateError(
                f"the checkpoint's '{name}' is of {dtype} and shape {shape}, and the model's of "
                f"{tensor.dtype} and {tuple(tensor.shape)}: build the model of the job that has saved"
            )
        try:
            tensors[key] = torch.from_numpy(array).view(tensor.dtype)
        except (RuntimeError, TypeError) as error:
            raise StateError(
                f"the checkpoint's '{name}' is not an array of {dtype} ({error}): load an earlier "
                "checkpoint"
            ) from error
    return tensors


def average_of(models: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The mean of floating tensors, formed in float64; other tensors are those of the first model."""
    return {
        name: sum(
            (model[name].double() for model in models),
            torch.zeros((), dtype=torch.float64, device="cpu"),
        )
        .div(len(models))
        .to(first.dtype)
        if first.is_floating_point()
        else first
        for name, first in models[0].items()
    }


def with_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state of gossip with tensors instead of arrays."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            found[key] = with_tensors(value)
        else:
            found[key] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    return found


def with_arrays(state: Any) -> Any:
    """A state of gossip with arrays instead of tensors; other values stay, for the algorithm to refuse."""
    if not isinstance(state, Mapping):
        return as_array(state)
    return {key: with_arrays(value) for key, value in state.items()}


def _tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    tensors = module.state_dict()
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise StateError(
                f"the module's state has '{name}', which is not a dense tensor: save state_dict() and "
                "gossip_state_dict() of each rank by torch.save"
            )
    return tensors


def _array(tensor: torch.Tensor) -> Any:
    on_host = tensor.detach().cpu().contiguous()
    try:
        return on_host.numpy()
    except TypeError:
        return on_host.view(_INTEGERS[on_host.element_size()]).numpy()
