"""Training with outer steps on Horovod: ranks train alone, and average their changes at times.

::

    outer = OuterStep("int4", model, every=30)
    model.fit(x, y, callbacks=[outer.callback()])  # a plain optimizer in model.compile
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from gradcomp import Config
from gradcomp.adapter_api import FloatArray
from gradcomp.errors import ConfigError
from horovod_compressors.outer import HorovodOuterSteps
from horovod_compressors.tensorflow.compression import Compression
from horovod_compressors.tensorflow.horovod_call import VariableNames

__all__ = ["OuterStep"]


class _VariableValues:
    """The trainable variables of a model; see `gradcomp.runtime.outer.steps.Values`."""

    def __init__(self, variables: Sequence[Any]) -> None:
        names = VariableNames(variables)
        self._variables = dict(names.variables())
        for name, variable in self._variables.items():
            if not variable.dtype.is_floating:
                raise ConfigError(
                    f"'{name}' is of {variable.dtype.name}; trainable variables must be floating"
                )
        self.shapes: Mapping[str, tuple[int, ...]] = names.shapes(list(self._variables))
        self.kinds = names.kinds(self.shapes)
        self.rounds = any(v.dtype != tf.float32 for v in self._variables.values())

    def read(self, name: str) -> FloatArray:
        array: FloatArray = np.asarray(self._variables[name].numpy(), np.float32).reshape(-1)
        return array

    def write(self, name: str, value: FloatArray) -> None:
        variable = self._variables[name]
        variable.assign(tf.cast(tf.constant(value.reshape(variable.shape)), variable.dtype))

    def keep(self, name: str) -> Any:
        return tf.identity(self._variables[name])

    def put_back(self, name: str, kept: Any) -> None:
        self._variables[name].assign(kept)


class OuterStep(HorovodOuterSteps):
    """Outer steps on Horovod with TensorFlow; see `gradcomp.runtime.outer.steps.OuterSteps`.

    Call ``step()`` outside of any ``tf.function``, or give `callback` to ``model.fit``. Every rank must
    construct it at the same time; variables of the first rank are then everyone's. The inner optimizer
    must not be a ``DistributedOptimizer``, and gradients need no ``DistributedGradientTape``.

    Args:
        config: a spec for all pseudo-gradients that are not small, or a `gradcomp.Config`.
        model: of Keras 2 or 3, and built; or anything with ``variables`` and ``trainable_variables``,
            such as a ``tf.Module``.
        every, options: settings of `gradcomp.runtime.outer.options.OuterOptions`.
        process_set: the ranks that average.

    Raises:
        SpecError: the spec is wrong.
        ConfigError: an argument does not fit, see `OuterOptions.of`; or the model is not built.
        ProtocolError: the ranks have different arguments or models.
    """

    def __init__(
        self,
        config: str | Config,
        model: Any,
        *,
        every: int = 30,
        process_set: Any = hvd.global_process_set,
        **options: Any,
    ) -> None:
        variables = list(model.trainable_variables)
        if not variables:
            raise ConfigError(
                f"the model, a {type(model).__name__}, has no trainable variables: build it first, for "
                "example with model.build(input_shape)"
            )
        values = _VariableValues(variables)
        self._keras = "tf_keras" if _is_of(model, "tf_keras") else "keras"
        compression = Compression(config, variables, process_set)
        chosen = self._agree(compression, values, values.kinds, every, options)
        plain = [v if isinstance(v, tf.Variable) else v.value for v in model.variables]
        # Not the states of random generators, which Horovod cannot send.
        common = [v for v in plain if v.dtype.is_floating]
        hvd.broadcast_variables(common, process_set.ranks[0], process_set=process_set)
        super().__init__(chosen, values)

    def callback(self) -> Any:
        """A callback for ``model.fit``, which makes the steps; batches must be of one step each."""
        return _callback(self, self._keras)


def _is_of(model: Any, package: str) -> bool:
    """Whether a class of the model is defined in a package."""
    return any(base.__module__.split(".")[0] == package for base in type(model).__mro__)


def _callback(outer: OuterStep, library: str) -> Any:
    """A callback of Keras 3, or of Keras 2 (``tf_keras``)."""
    base: Any = importlib.import_module(library).callbacks.Callback

    class OuterStepCallback(base):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            per_call = getattr(self.model, "steps_per_execution", None)
            if per_call is None:  # Keras 2
                per_call = getattr(self.model, "_steps_per_execution", None) or 1
            if int(per_call) != 1:
                raise ConfigError(
                    f"steps_per_execution is {int(per_call)}; with outer steps it must be 1, as Keras "
                    "calls callbacks once per execution"
                )

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            outer.step()

    return OuterStepCallback()
