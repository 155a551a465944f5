"""Outputs of reduce-scatters in which averages arrive after ``fully_shard`` has made gradients of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

from gradcomp.errors import ConfigError
from gradcomp_torch.compat import has_gradient_hooks, version_counter

__all__ = ["LateAverage", "ReduceOutput"]


class ReduceOutput:
    """The output of a module's reduce-scatter, from the end of its all-reduce hook on.

    After the hook ``fully_shard`` makes the module's gradients of it. Mostly they are views of the
    output, so an average may arrive there later. Or it divides the output (sums with a factor,
    float16), casts it to the parameters' dtype, copies it to the CPU or adds it to earlier gradients.
    No public setting tells which: `holds` looks at what it has done.
    """

    def __init__(self, output: torch.Tensor) -> None:
        self._output = output
        self._version = version_counter(output)

    def holds(self, parameters: Sequence[DTensor]) -> bool:
        """Whether the gradients of a module are views of the output, unchanged since the hook.

        Args:
            parameters: all of the module; those that a step does not use have no gradient.
        """
        storage = self._output.untyped_storage().data_ptr()
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return (
            bool(grads)
            and version_counter(self._output) == self._version
            and all(_local(grad).untyped_storage().data_ptr() == storage for grad in grads)
        )

    def may_wait(self, parameters: Sequence[DTensor]) -> bool:
        """Whether the average may arrive after the hook, in passes like this one."""
        return (
            self._output.device.type == "cpu"
            and not _has_hooks(parameters)
            and self.holds(parameters)
        )


class LateAverage:
    """A module's gradients; their average arrives before the backward pass ends.

    Earlier gradients are set aside until then: ``fully_shard`` would add the output to them at once.

    Raises:
        ConfigError: a hook would get a gradient before its average arrives.
    """

    def __init__(self, name: str, output: torch.Tensor, parameters: Sequence[DTensor]) -> None:
        if _has_hooks(parameters):
            raise ConfigError(
                f"a parameter of '{name}' has a hook of register_post_accumulate_grad_hook, which runs "
                "before the average arrives: register it before the module's first backward pass, or "
                "call fsdp_hook again after it"
            )
        self._name = name
        self._output = output
        self._reduced = ReduceOutput(output)
        self._parameters = parameters
        self._earlier = [
            (parameter, parameter.grad) for parameter in parameters if parameter.grad is not None
        ]
        for parameter, _ in self._earlier:
            parameter.grad = None

    def arrive(self, average: torch.Tensor) -> None:
        """Put the average into the gradients, and add it to the earlier ones.

        Raises:
            ConfigError: the gradients are elsewhere.
        """
        if not self._reduced.holds(self._parameters):
            raise ConfigError(
                f"fully_shard has divided, cast or copied the gradients of '{self._name}', and had not "
                "done so in the module's first backward pass: call fsdp_hook again after a change of "
                "fully_shard's settings or of the parameters, and build the model again after an error "
                "in a backward pass"
            )
        self._output.copy_(average.view_as(self._output))
        for parameter, earlier in self._earlier:
            if parameter.grad is not None:
                _local(earlier).add_(_local(parameter.grad))
            parameter.grad = earlier


def _local(grad: torch.Tensor) -> torch.Tensor:
    return grad.to_local() if isinstance(grad, DTensor) else grad


def _has_hooks(parameters: Sequence[DTensor]) -> bool:
    return any(map(has_gradient_hooks, parameters))
