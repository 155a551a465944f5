"""The model of a communication hook, and what a step uses of it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from weakref import ReferenceType, finalize, ref

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from gradcomp.adapter_api import AllReduce, Driver, FloatArray
from gradcomp.errors import ConfigError, StateError
from gradcomp_torch.compat import comm_hooks, ignores_joined_ranks, uses_python_reducer
from gradcomp_torch.parameters import uncompiled_name

__all__ = ["UnusedParameters", "WrappedModel", "registered_with"]


@dataclass(frozen=True)
class WrappedModel:
    """The parameters of a model, and the ranks that average its gradients.

    Attributes:
        names: of the parameters.
        shapes: by name.
        world: the ranks.
        leaves_out: a step may leave parameters out, for which DDP then drops what a hook returns.
        model: a reference to the model.
    """

    names: dict[torch.Tensor, str]
    shapes: dict[str, tuple[int, ...]]
    world: dist.ProcessGroup
    leaves_out: bool
    model: ReferenceType[DistributedDataParallel]

    @classmethod
    def of(cls, model: DistributedDataParallel) -> WrappedModel:
        """All of its parameters that DDP averages, by their names in ``model.module``.

        Names do not depend on whether torch.compile has wrapped the module, or a part of it.

        Raises:
            ConfigError: the model gives its hook no buckets.
        """
        if uses_python_reducer(model):
            raise ConfigError(
                "DistributedDataParallel was made with torch._dynamo.config.optimize_ddp="
                "'python_reducer', which gives hooks no buckets: set it to True, PyTorch's default, "
                "before the model is wrapped"
            )
        names = {
            parameter: uncompiled_name(name)
            for name, parameter in model.module.named_parameters()
            if parameter.requires_grad and name not in model.parameters_to_ignore
        }
        shapes = {name: tuple(parameter.shape) for parameter, name in names.items()}
        leaves_out = bool(model.find_unused_parameters or model.static_graph)
        return cls(names, shapes, model.process_group, leaves_out, ref(model))

    def is_complex(self, name: str) -> bool:
        """Whether a parameter is complex."""
        return name in self._complex

    @cached_property
    def _complex(self) -> frozenset[str]:
        return frozenset(name for parameter, name in self.names.items() if parameter.is_complex())

    def check_join(self) -> None:
        """Refuse a ``join`` that asks for averages over the ranks with data, which no hook knows.

        Raises:
            ConfigError: the model is in ``join(divide_by_initial_world_size=False)``.
        """
        model = self.model()
        if model is not None and ignores_joined_ranks(model):
            raise ConfigError(
                "divide_by_initial_world_size is False in join(), and averages of ddp_hook are over all "
                "ranks, those without data included: leave the argument out, or set it to True"
            )

    def name(self, parameter: torch.Tensor) -> str:
        """The name of a parameter.

        Raises:
            ConfigError: it is another model's.
        """
        name = self.names.get(parameter)
        if name is None:
            raise ConfigError(
                f"a gradient of shape {tuple(parameter.shape)} belongs to none of the "
                f"{len(self.names)} parameters of the model of this state: call ddp_hook for each "
                "model, and register what it returns with that model alone"
            )
        return name


def registered_with(state: object) -> DistributedDataParallel:
    """The model that got this state from ``register_comm_hook``; takes a fraction of a second.

    PyTorch tells a hook its parameters and neither their names nor the ranks that average them. Only
    the model knows these, and PyTorch gives no way to it: it is found among all live objects.

    Raises:
        StateError: there is none.
    """
    for candidate in gc.get_objects():
        # The type itself: isinstance() would ask foreign objects for their __class__.
        if issubclass(type(candidate), DistributedDataParallel) and any(
            registered is state for _, registered in comm_hooks(candidate)
        ):
            model: DistributedDataParallel = candidate
            return model
    raise StateError(
        "this compression has no model yet: call model.register_comm_hook(state, hook) first, or pass "
        "the DistributedDataParallel model to ddp_hook"
    )


class UnusedParameters:
    """Finds the parameters that no rank has used in a step: DDP does not apply their averages.

    With ``find_unused_parameters`` or ``static_graph`` DDP gives a hook zeros for a parameter that this rank
    has not used. If no rank has used it, DDP leaves ``.grad`` as it is.

    Args:
        names: of the parameters that DDP averages.
        in_pass: a backward pass is under way. All its parameters count as used, as nothing saw them.
    """

    def __init__(self, names: Mapping[torch.Tensor, str], in_pass: bool) -> None:
        self._places = {name: place for place, name in enumerate(names.values())}
        # As in DDP, passes under no_sync() count for the step that follows.
        self._used = set(names.values()) if in_pass else set()
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_use, self._used, name))  # type: ignore[no-untyped-call]
            for parameter, name in names.items()
        ]
        finalize(self, _remove, hooks)
        self._applied = np.zeros(len(self._places), np.float32)
        self._request: Any = None

    def unused(self, parameters: Mapping[str, torch.Tensor], buffer: torch.Tensor) -> list[str]:
        """The names of those parameters of a complete bucket that this rank has not used.

        Args:
            parameters: of the bucket, by name.
            buffer: the bucket's gradients. DDP applies the average of a ``.grad`` that is a view of it.
        """
        memory = buffer.untyped_storage().data_ptr()
        unused = []
        for name, parameter in parameters.items():
            grad = parameter.grad
            is_view = grad is not None and grad.untyped_storage().data_ptr() == memory
            if name in self._used or is_view:
                self._applied[self._places[name]] = 1
            else:
                unused.append(name)
        return unused

    @property
    def nbytes(self) -> int:
        """The size of the request of `ask`."""
        return self._applied.nbytes

    def ask(self, driver: Driver) -> None:
        """Begin to compare with the other ranks, after the last bucket of a step."""
        self._request = driver.post(AllReduce("step.used", self._applied))
        self._applied = np.zeros_like(self._applied)
        self._used.clear()

    def dropped(self, driver: Driver) -> list[str]:
        """The names of the parameters that no rank has used."""
        request, self._request = self._request, None
        share: FloatArray = driver.reply(request)
        return [name for name, place in self._places.items() if share[place] == 0]


def _use(used: set[str], name: str, _: torch.Tensor) -> None:
    used.add(name)


def _remove(hooks: Iterable[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
