"""The model of a communication hook, also if the hook was made before the model was wrapped."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradcomp.errors import ConfigError, StateError
from gradcomp_torch.parameters import uncompiled_name

__all__ = ["WrappedModel", "registered_with"]


@dataclass(frozen=True)
class WrappedModel:
    """The parameters of a model, and the ranks that average its gradients."""

    names: dict[torch.Tensor, str]
    shapes: dict[str, tuple[int, ...]]
    world: dist.ProcessGroup

    @classmethod
    def of(cls, model: DistributedDataParallel) -> WrappedModel:
        """All of its parameters that DDP averages, by their names in ``model.module``.

        Names do not depend on whether torch.compile has wrapped the module, or a part of it.

        Raises:
            ConfigError: the model gives its hook no buckets.
        """
        if getattr(model, "_use_python_reducer", False):
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
        return cls(names, shapes, model.process_group)

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
            registered is state for _, registered in vars(candidate).get("_comm_hooks", ())
        ):
            model: DistributedDataParallel = candidate
            return model
    raise StateError(
        "this compression has no model yet: call model.register_comm_hook(state, hook) first, or pass "
        "the DistributedDataParallel model to ddp_hook"
    )
