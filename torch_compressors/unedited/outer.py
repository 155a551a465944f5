"""Outer steps in an unedited script: its DDP models send no gradients, its optimizers count steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradcomp import Config
from gradcomp.errors import ConfigError
from gradcomp_torch.skipped_steps import count_skipped_steps
from torch_compressors.outer import OuterStep

__all__ = ["OuterModels"]


class OuterModels:
    """The DDP models of a script; their ranks average changes after every H steps of an optimizer.

    Args:
        config: of the compression.
        every: inner steps per outer step, H.
    """

    def __init__(self, config: Config, every: int) -> None:
        self._config = config
        self._every = every
        self._models: list[weakref.ref[DistributedDataParallel]] = []
        self._steps: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Steps] = (
            weakref.WeakKeyDictionary()
        )
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)
        count_skipped_steps(self._steps_of)

    def take(self, model: DistributedDataParallel) -> None:
        """Let a new model keep its gradients and its buffers on their rank."""
        model.register_comm_hook(None, noop_hook)
        model.broadcast_buffers = False
        model.join = _refuse_join  # type: ignore[method-assign]
        self._models.append(weakref.ref(model))

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._steps_of(optimizer)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._steps[optimizer].step()

    def _steps_of(self, optimizer: torch.optim.Optimizer) -> _Steps:
        """The outer steps of an optimizer, which average its trainable parameters of today.

        They begin at its first step, when the script has loaded its checkpoint, and those of parameters
        that it gets later at the step after.
        """
        steps = self._steps.setdefault(optimizer, _Steps())
        trainable = {
            id(parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        }
        if new := trainable - steps.known:
            for model, named in self._of_models(new):
                self._check(optimizer, named)
                group = model.process_group
                steps.add(OuterStep(self._config, named, every=self._every, process_group=group))
            steps.known |= new
        return steps

    def _of_models(
        self, parameters: set[int]
    ) -> Iterator[tuple[DistributedDataParallel, list[tuple[str, torch.Tensor]]]]:
        """Each model that has some of the parameters, and these."""
        for model in filter(None, (reference() for reference in self._models)):
            named = [pair for pair in model.module.named_parameters() if id(pair[1]) in parameters]
            if named:
                yield model, named

    def _check(
        self, optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.Tensor]]
    ) -> None:
        """Refuse optimizers that do not step a parameter alone, or on each rank."""
        # Its module takes half a second to import.
        if "ZeroRedundancyOptimizer" in (base.__name__ for base in type(optimizer).__mro__):
            raise ConfigError(
                "ZeroRedundancyOptimizer steps each parameter on one rank, and with --outer every rank "
                "steps all of them: use its optimizer_class itself, or leave --outer out"
            )
        others = [item for item in self._steps.items() if item[0] is not optimizer]
        for name, parameter in named:
            for other, steps in others:
                if id(parameter) in steps.known:
                    raise ConfigError(
                        f"'{name}' has two optimizers, {type(other).__name__} and "
                        f"{type(optimizer).__name__}; with --outer a parameter must have one: call "
                        "torch_compressors.OuterStep in the script"
                    )


class _Steps:
    """The outer steps of one optimizer: an `OuterStep` for each model that has some of its parameters.

    Attributes:
        known: the ids of the parameters, also of those that belong to no model.
        inner_steps: number of steps so far.
    """

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.inner_steps = 0
        self._outer: list[OuterStep] = []

    def add(self, outer: OuterStep) -> None:
        """Average these parameters, too."""
        self._outer.append(outer)

    def step(self) -> None:
        """Count a step of the optimizer."""
        self.inner_steps += 1
        for outer in self._outer:
            outer.step()


def _refuse_join(*_: Any, **__: Any) -> NoReturn:
    raise ConfigError(
        "DistributedDataParallel.join answers averages of gradients, and with --outer ranks average "
        "changes: give all ranks equally many batches, or leave --outer out"
    )
