"""Parameters of PyTorch: their bytes, for digests, and their names without ``torch.compile``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch

from gradcomp.errors import ConfigError
from gradcomp_torch.compat import COMPILED_PART

__all__ = [
    "check_real",
    "check_unsharded",
    "is_sharded",
    "kinds_of",
    "parameter_bytes",
    "uncompiled",
    "uncompiled_name",
]


def parameter_bytes(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, Any]]:
    """Names and bytes of tensors of any dtype, memory layout and device."""
    for name, tensor in named:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        yield name, flat.view(torch.uint8).numpy()


def kinds_of(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Dtype, and layout if it is no dense one, of tensors by name, such as "float32"."""
    return {name: " ".join(_kind(tensor)) for name, tensor in named}


def _kind(tensor: torch.Tensor) -> Iterator[str]:
    yield str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided:
        yield str(tensor.layout).removeprefix("torch.")


def uncompiled_name(name: str) -> str:
    """The name that a parameter or module has without ``torch.compile``.

    Compiled and eager runs so have the same rules, random numbers and checkpoints.
    """
    return ".".join(part for part in name.split(".") if part != COMPILED_PART)


def check_real(named: Iterable[tuple[str, torch.Tensor]], function: str) -> None:
    """Refuse complex parameters.

    Args:
        function: the caller's name, for the message.

    Raises:
        ConfigError: a parameter that may have a gradient is complex.
    """
    for name, parameter in named:
        if parameter.requires_grad and parameter.is_complex():
            raise ConfigError(
                f"'{name}' is of {parameter.dtype}, and {function} takes real parameters: make it real, and use "
                "torch.view_as_complex on it"
            )


_T = TypeVar("_T")


def uncompiled(named: Iterable[tuple[str, _T]]) -> list[tuple[str, _T]]:
    """Pairs of name and parameter with the names of `uncompiled_name`.

    Raises:
        ConfigError: a name is repeated.
    """
    pairs = [(uncompiled_name(name), parameter) for name, parameter in named]
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"names in named_parameters must be unique; repeated: {repeated}")
    return pairs


def is_sharded(tensor: Any) -> bool:
    """Whether it is a DTensor, without an import of its module, which takes half a second."""
    return hasattr(tensor, "placements")


def check_unsharded(named: Iterable[tuple[str, Any]]) -> None:
    """Refuse sharded parameters.

    Raises:
        ConfigError: a parameter is a DTensor.
    """
    for name, parameter in named:
        if is_sharded(parameter):
            raise ConfigError(
                f"'{name}' is sharded over ranks, as by fully_shard, and each rank must have whole "
                "parameters here: use torch_compressors.fsdp, or an unsharded model"
            )
