"""Finds the parameter of a gradient.

The stock optimizer calls ``compress`` with a tensor and nothing else. The tensor is usually
``p.grad`` itself, so the object identifies the parameter. In other cases the frame of the calling
optimizer has the parameter: ``sparse_as_dense`` makes a dense copy, Adasum passes the parameter,
and the user may have given no names. In this package only this file and `wait` use private names of
Horovod; tests/engines/test_horovod_seam.py checks them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from operator import itemgetter
from types import FrameType
from typing import Any

import torch

from gradcomp.errors import ConfigError
from gradcomp_torch.parameters import check_unsharded, uncompiled

__all__ = ["ParameterNames", "calling_optimizer", "check_averaged"]

_CALLERS = frozenset({"_allreduce_grad_async", "_grouped_allreduce_grad_async"})
_MAX_DEPTH = 6


def _caller_frame(callers: Collection[str] = _CALLERS) -> FrameType | None:
    """The frame of the stock optimizer's method that is calling ``compress``, or None."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_DEPTH):
        if frame is None:
            return None
        if frame.f_code.co_name in callers:
            return frame
        frame = frame.f_back
    return None


def calling_optimizer() -> Any | None:
    """The stock ``DistributedOptimizer`` that is calling ``compress``; None if there is none."""
    frame = _caller_frame()
    return None if frame is None else frame.f_locals.get("self")


def check_averaged(optimizer: Any) -> None:
    """Refuse parameters that a stock ``DistributedOptimizer`` updates and never averages.

    It averages parameters that were trainable when it was made.

    Raises:
        ConfigError: a parameter was added or unfrozen later.
    """
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter.requires_grad and parameter not in optimizer._requires_update:
                name = optimizer._parameter_names.get(
                    parameter, f"parameter {place} of group {number}"
                )
                raise ConfigError(
                    f"'{name}' of shape {tuple(parameter.shape)} was added or unfrozen after "
                    "hvd.DistributedOptimizer was made, which never averages it: then make a new "
                    "DistributedOptimizer with a new Compression, on every rank"
                )


class ParameterNames:
    """Finds the names of gradients.

    Args:
        named_parameters: pairs of name and parameter, as ``model.named_parameters()`` gives them;
            None for the names of the calling optimizer.

    Raises:
        ConfigError: ``named_parameters`` are not such pairs, a name is repeated, or a parameter is
            sharded.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, torch.Tensor]] | None) -> None:
        if isinstance(named_parameters, torch.nn.Module):
            raise ConfigError(
                f"named_parameters is a {type(named_parameters).__name__}: pass its "
                "named_parameters(), as in Compression(spec, model.named_parameters())"
            )
        self._given = named_parameters is not None
        self._optimizer: Any = None
        self._pairs = _check_pairs(list(named_parameters or ()))
        # Gradients usually come in the same order: the search starts next to the last result.
        self._position = 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter that may have a gradient, in the order given.

        Empty if no names are known.
        """
        self._known()
        return {name: tuple(p.shape) for name, p in self.tensors()}

    def parameters(self) -> dict[torch.Tensor, str]:
        """The names of all parameters."""
        self._known()
        return {parameter: name for name, parameter in self._pairs}

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Name and tensor of every parameter of `shapes`."""
        return [(name, p) for name, p in self._pairs if p.requires_grad]

    def _known(self) -> bool:
        """Whether names are known: given ones, or the calling optimizer's."""
        if self._given:
            return True
        optimizer = calling_optimizer()
        if optimizer is None:
            return False
        if optimizer is not self._optimizer:
            self._optimizer = optimizer
            self._pairs = uncompiled((name, p) for p, name in optimizer._parameter_names.items())
        return True

    def decompressed(self) -> tuple[str, torch.Tensor] | None:
        """Name and parameter of the gradient for which the stock optimizer calls ``decompress``.

        None outside of its ``synchronize()``, or if the parameter is none of those known.
        """
        frame = _caller_frame({"synchronize"})
        parameter = None if frame is None else frame.f_locals.get("p")
        return next(((name, p) for name, p in self._pairs if p is parameter), None)

    def find(self, tensor: torch.Tensor) -> str | None:
        """The name of the parameter that is ``tensor``, or has it as its gradient.

        None if no names are known: without ``named_parameters`` and outside an optimizer.

        Raises:
            ConfigError: the tensor belongs to none of the parameters.
        """
        if not self._known():
            return None
        count = len(self._pairs)
        # Backward passes run from the last parameter to the first.
        for offset in range(count):
            index = (self._position - 1 - offset) % count
            name, parameter = self._pairs[index]
            if parameter.grad is tensor or parameter is tensor:
                self._position = index
                return name
        frame = _caller_frame()
        compressed = None if frame is None else frame.f_locals.get("p")
        for name, parameter in self._pairs:
            if parameter is compressed:
                return name
        raise ConfigError(
            f"a gradient of shape {tuple(tensor.shape)} belongs to none of the {count} "
            "named_parameters given to Compression: give it the same ones as the optimizer, for "
            "example named_parameters=model.named_parameters()"
        )


def _check_pairs(pairs: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise ConfigError(
                "named_parameters must be pairs of name and parameter: pass "
                f"model.named_parameters(), not model.parameters(); one is a {type(pair).__name__}"
            )
    pairs = uncompiled(pairs)
    check_unsharded(pairs)
    # A parameter with several names keeps the name that the stock optimizer uses.
    chosen = {parameter: name for name, parameter in sorted(pairs, key=itemgetter(0))}
    return [(name, parameter) for name, parameter in pairs if chosen[parameter] == name]
