"""The call of stock Horovod around a compressor: its gradients, variables and operation.

Horovod calls ``compress`` while it traces a graph, with one gradient at a time and nothing else.
The calling frames have the rest: all gradients, the variables, the operation. This file and `keras`
use private names of Horovod; without them every case of the tests on TensorFlow fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import tensorflow as tf

from gradcomp.errors import ConfigError

__all__ = [
    "Call",
    "VariableNames",
    "calling_allreduce",
    "is_keras_2_loss_scale",
    "keras_2_loss_scale",
    "keras_3_under_construction",
    "loss_scaled_by_caller",
    "plain_variable",
]

# The prefix of functions that AutoGraph has converted; it also adds frames between them.
_AUTOGRAPH = "tf__"
_MAX_DEPTH = 200

# The locals in which callers of ``allreduce_grads`` keep the variables, in the order of gradients;
# its own argument may hold a graph's stand-ins for them.
_VARIABLES = ("rs", "rv")


@dataclass(frozen=True)
class Call:
    """One call of Horovod's function that all-reduces a list of gradients.

    Attributes:
        grads: all gradients; None for a variable without a gradient.
        variables: the variables of these gradients, in the same order.
        op: the operation, such as ``hvd.Average``.
        process_set: the ranks of the operation.
        grouped: whether Horovod all-reduces gradients in groups.
    """

    grads: Sequence[Any]
    variables: Sequence[Any]
    op: Any
    process_set: Any
    grouped: bool


def _frames() -> Iterator[tuple[str, FrameType]]:
    """The callers' frames, from the inside, with the functions' names."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_MAX_DEPTH):
        if frame is None:
            return
        yield frame.f_code.co_name.removeprefix(_AUTOGRAPH), frame
        frame = frame.f_back


def calling_allreduce() -> Call | None:
    """The call of Horovod that is calling ``compress``; None if there is none."""
    reducing: dict[str, Any] | None = None
    grouped = False
    grads: Sequence[Any] | None = None
    for name, frame in _frames():
        if reducing is None:
            if name in ("allreduce", "grouped_allreduce"):
                reducing, grouped = frame.f_locals, name == "grouped_allreduce"
        elif grads is None:
            if name == "allreduce_grads":
                grads = list(frame.f_locals["grads"])
        else:
            for key in _VARIABLES:
                variables = frame.f_locals.get(key)
                if isinstance(variables, list) and len(variables) == len(grads):
                    of_horovod = reducing["op"], reducing["process_set"]
                    return Call(grads, variables, *of_horovod, grouped)
    return None


def keras_3_under_construction() -> bool:
    """Whether Horovod is wrapping an optimizer of Keras 3: the result would never average."""
    keras = sys.modules.get("keras")
    if keras is None:
        return False
    return any(
        name == "__init__"
        and frame.f_globals.get("__name__") == "horovod._keras"
        and isinstance(frame.f_locals.get("self"), keras.optimizers.Optimizer)
        for name, frame in _frames()
    )


def loss_scaled_by_caller(optimizer: Any) -> bool:
    """Whether a LossScaleOptimizer of Keras 3 around this optimizer is calling it."""
    scaling = sys.modules["keras"].optimizers.LossScaleOptimizer
    callers = (frame.f_locals.get("self") for _, frame in _frames())
    return any(isinstance(caller, scaling) and caller is not optimizer for caller in callers)


def is_keras_2_loss_scale(optimizer: Any) -> bool:
    """Whether an optimizer is a LossScaleOptimizer of Keras 2."""
    keras = sys.modules.get("tf_keras")
    return keras is not None and isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)


def keras_2_loss_scale() -> Any:
    """The LossScaleOptimizer of Keras 2 around the optimizer that is calling; None if there is none.

    Raises:
        ConfigError: the optimizer accumulates gradients.
    """
    accumulates = False
    for _, frame in _frames():
        caller = frame.f_locals.get("self")
        accumulates = accumulates or getattr(caller, "_agg_helper", None) is not None
        if is_keras_2_loss_scale(caller):
            if accumulates:
                raise ConfigError(
                    "backward_passes_per_step above 1 does not work with a LossScaleOptimizer: it "
                    "checks the gradients of a rank alone in all passes but the last, and the ranks' "
                    "scales would differ; use backward_passes_per_step=1"
                )
            return caller
    return None


class VariableNames:
    """Names of variables, unique and the same on every rank.

    Args:
        variables: all that may have gradients, such as ``model.trainable_variables``; None to name
            variables as they come.
    """

    def __init__(self, variables: Iterable[Any] | None) -> None:
        self._given = variables is not None
        self._names: dict[Any, str] = {}
        self._variables: dict[str, Any] = {}
        for variable in variables or ():
            self._add(variable)

    def find(self, variables: Sequence[Any]) -> list[str]:
        """The names of variables.

        Raises:
            ConfigError: a variable is not among the given variables.
        """
        return [self._find(variable, len(variables)) for variable in variables]

    def shapes(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all given variables, or of these if none were given."""
        chosen = self._variables if self._given else names
        return {name: tuple(self._variables[name].shape) for name in chosen}

    def kinds(self, names: Iterable[str]) -> dict[str, str]:
        """Dtypes of variables by their names."""
        return {name: self._variables[name].dtype.base_dtype.name for name in names}

    def variables(self) -> list[tuple[str, Any]]:
        """Name and TensorFlow variable of every variable known so far, in the order of `shapes`."""
        return list(self._variables.items())

    def _find(self, variable: Any, count: int) -> str:
        name = self._names.get(plain_variable(variable).ref())
        if name is not None:
            return name
        if self._given:
            raise ConfigError(
                f"one of {count} variables with gradients, '{_own_name(variable)}' of shape "
                f"{tuple(variable.shape)}, is none of the {len(self._names)} given to Compression: "
                "give it all of them, for example variables=model.trainable_variables once the "
                "model is built"
            )
        return self._add(variable)

    def _add(self, variable: Any) -> str:
        base_name = _own_name(variable)
        name, count = base_name, 1
        while name in self._variables:
            count += 1
            name = f"{base_name}_{count}"
        self._names[plain_variable(variable).ref()] = name
        self._variables[name] = plain_variable(variable)
        return name


def plain_variable(variable: Any) -> Any:
    """The TensorFlow variable of a Keras 3 variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _own_name(variable: Any) -> str:
    name: str = getattr(variable, "path", None) or variable.name
    return name.removesuffix(":0")
