"""The units of a sharded model: ``fully_shard`` reduces the gradients of a unit together."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from gradcomp.errors import ConfigError
from gradcomp_torch.compat import fsdp_state
from gradcomp_torch.parameters import uncompiled_name
from torch_compressors.fsdp.sharded import sharded_modules

__all__ = [
    "ShardedParameter",
    "Unit",
    "managed_parameters",
    "shard_group",
    "units_of",
    "wrapped_together",
]


class ShardedParameter(NamedTuple):
    """A parameter of a unit.

    Attributes:
        name: in the model.
        parameter: this rank's shard.
        shape: of the whole gradient as it is cut by rows: a parameter that is sharded by another
            dimension than the first comes as its chunks, one below the other.
        chunk: number of elements of each rank, padding included.
    """

    name: str
    parameter: DTensor
    shape: tuple[int, ...]
    chunk: int

    @property
    def numel(self) -> int:
        """Number of elements of the whole parameter."""
        return math.prod(self.shape)


class Unit(NamedTuple):
    """A module that ``fully_shard`` has wrapped, or several that it wrapped together."""

    name: str
    module: FSDPModule
    parameters: tuple[ShardedParameter, ...]


def units_of(model: torch.nn.Module) -> list[Unit]:
    """The units of a model that have parameters.

    Raises:
        ConfigError: the model is not sharded, or a parameter is sharded over several dimensions of
            its mesh.
    """
    together = wrapped_together(sharded_modules(model))
    of_states = [managed_parameters(modules.values()) for modules in together]
    names: dict[torch.Tensor, str] = {
        parameter: uncompiled_name(name) for name, parameter in model.named_parameters()
    }
    units = []
    for modules, parameters in zip(together, of_states, strict=True):
        filled = tuple(_sharded(names[shard], shard) for shard in parameters if shard.numel())
        if filled:
            units.append(Unit(*next(iter(modules.items())), filled))
    return units


def wrapped_together(sharded: Mapping[str, FSDPModule]) -> list[dict[str, FSDPModule]]:
    """The modules by name; those that one call of ``fully_shard`` has wrapped are together."""
    together: dict[int, dict[str, FSDPModule]] = {}
    for name, module in sharded.items():
        together.setdefault(id(fsdp_state(module)), {})[name] = module
    return list(together.values())


def managed_parameters(together: Collection[FSDPModule]) -> list[DTensor]:
    """This rank's shards of the parameters of modules that were wrapped together."""
    for module in together:
        module.reshard()  # after a forward pass the model itself may still be whole
    # A parameter that is not a DTensor is ignored by fully_shard.
    managed = (
        parameter
        for module in together
        for parameter in _managed(module)
        if isinstance(parameter, DTensor)
    )
    return list(dict.fromkeys(managed))


def _managed(module: Any) -> Iterator[torch.Tensor]:
    """Parameters in the order of ``fully_shard``: those of children first, without other units."""
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from _managed(child)
    yield from module.parameters(recurse=False)


def _sharded(name: str, parameter: DTensor) -> ShardedParameter:
    mesh, placements = parameter.device_mesh, parameter.placements
    along = _mesh_dimension(name, parameter)
    ranks = mesh.size(along)
    cut = placements[along].dim  # type: ignore[attr-defined]
    shape = list(parameter.shape)
    if cut > 0:
        shape[0] *= ranks
        shape[cut] //= ranks
    rows = -(-shape[0] // ranks)
    return ShardedParameter(name, parameter, tuple(shape), rows * math.prod(shape[1:]))


def _mesh_dimension(name: str, parameter: DTensor) -> int:
    """The dimension of the mesh along which a parameter is sharded."""
    along = [index for index, placement in enumerate(parameter.placements) if placement.is_shard()]
    if len(along) != 1:
        raise ConfigError(
            f"'{name}' has the placements {parameter.placements} on its mesh; it must be sharded "
            "along one dimension: fsdp_reduce_scatter does not support tensor parallelism"
        )
    return along[0]


def shard_group(units: list[Unit]) -> dist.ProcessGroup:
    """The ranks that share the parameters.

    Raises:
        ConfigError: parameters are sharded over different ranks.
    """
    groups: dict[tuple[int, ...], tuple[str, dist.ProcessGroup]] = {}
    for unit in units:
        for sharded in unit.parameters:
            mesh = sharded.parameter.device_mesh
            group = mesh.get_group(_mesh_dimension(sharded.name, sharded.parameter))
            ranks = tuple(dist.get_process_group_ranks(group))
            groups.setdefault(ranks, (sharded.name, group))
    if len(groups) != 1:
        found = ", ".join(f"'{name}' over ranks {[*ranks]}" for ranks, (name, _) in groups.items())
        raise ConfigError(
            f"all parameters must be sharded over the same ranks, but there are {found}: call "
            "fsdp_reduce_scatter for each part of the model"
        )
    ((_, group),) = groups.values()
    return group
