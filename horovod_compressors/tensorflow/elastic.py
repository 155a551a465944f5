"""The state of an elastic job with TensorFlow: model, optimizer, compression and objects.

::

    state = ElasticState(model, optimizer, compression=compression, step=0)
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from gradcomp.errors import ConfigError
from horovod_compressors.tensorflow.compression import Compression
from horovod_compressors.tensorflow.horovod_call import plain_variable

__all__ = ["ElasticState"]


class ElasticState(hvd.elastic.TensorFlowKerasState):  # type: ignore[misc]
    """A state for ``hvd.elastic.run``: Keras 2 and 3, plain TensorFlow, and compressions.

    Horovod's ``TensorFlowKerasState`` fails with Keras 3, its ``TensorFlowState`` lets ranks that come
    later wait for ever, and neither takes back residuals.

    Args:
        model: a Keras model that is built, a ``tf.Module``, or a list of variables.
        optimizer: of Keras; by default the optimizer of a compiled model. It is built if necessary.
        others: become attributes, as all arguments do. A `Compression`, variables, or objects with
            ``variables`` are committed and restored. Anything else must allow pickling; rank 0's is
            everyone's.

    Raises:
        ConfigError: the model, or one of ``others``, is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, **others: Any) -> None:
        for name, value in {"model": model, **others}.items():
            _check_built(name, value)
        if optimizer is None:
            optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not getattr(optimizer, "built", False):
            optimizer.build(list(getattr(model, "trainable_variables", model)))
        kept = {name: value for name, value in others.items() if _is_kept(value)}
        parts = [model, optimizer or [], *kept.values()]
        self._compressions = [part for part in parts if isinstance(part, Compression)]
        self._parts = [part for part in parts if not isinstance(part, Compression)]
        objects = {name: value for name, value in others.items() if name not in kept}
        # Horovod's class looks into model and optimizer in methods that are replaced here.
        super().__init__(self, self, **objects)
        self._bcast_model = self._broadcast
        self.model, self.optimizer = model, optimizer
        for name, value in kept.items():
            setattr(self, name, value)

    def sync(self) -> None:
        """See Horovod.

        Raises:
            HorovodInternalError: a rank is lost; ``hvd.elastic.run`` knows this error alone.
        """
        try:
            super().sync()
        except tf.errors.UnknownError as error:
            raise hvd.elastic.HorovodInternalError(str(error)) from error

    def _variables(self) -> list[Any]:
        return [
            plain_variable(variable) for part in self._parts for variable in _variables_of(part)
        ]

    def _broadcast(self) -> None:
        if hvd.size() == 1:
            return
        low = [variable for variable in self._variables() if variable.dtype == tf.bfloat16]
        others = [variable for variable in self._variables() if variable.dtype != tf.bfloat16]
        hvd.broadcast_variables(others, root_rank=0)
        for variable in low:  # Horovod does not know bfloat16
            variable.assign(tf.cast(hvd.broadcast(tf.cast(variable, tf.float32), 0), tf.bfloat16))

    def _save_model(self) -> None:
        self._saved_variables = [tf.identity(variable) for variable in self._variables()]
        self._saved_compressions = [compression.snapshot() for compression in self._compressions]

    def _load_model(self) -> None:
        for variable, saved in zip(self._variables(), self._saved_variables, strict=True):
            variable.assign(saved)
        for compression, snapshot in zip(self._compressions, self._saved_compressions, strict=True):
            compression.roll_back(snapshot)


def _check_built(name: str, value: Any) -> None:
    """Refuse a model or an optimizer without variables: other ranks may have them already."""
    if not getattr(value, "built", True):
        raise ConfigError(
            f"'{name}', a {type(value).__name__}, has no variables yet: build it before ElasticState, with "
            "model.build(input_shape) or optimizer.build(model.trainable_variables)"
        )


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable | keras.Variable)


def _is_kept(value: Any) -> bool:
    """Whether an object is not sent as a whole, but has variables, or is a compression."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_variable, value))
    return isinstance(value, Compression) or _is_variable(value) or hasattr(value, "variables")


def _variables_of(part: Any) -> list[Any]:
    """All variables of a model or an optimizer, or the variables themselves."""
    if _is_variable(part):
        return [part]
    found = getattr(part, "variables", part)
    return list(found() if callable(found) else found)  # a method of Keras 2's older optimizers
