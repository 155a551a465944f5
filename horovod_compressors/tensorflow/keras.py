"""A distributed optimizer for Keras 2 and Keras 3."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from gradcomp.errors import ConfigError
from horovod_compressors.tensorflow.compression import Compression
from horovod_compressors.tensorflow.dgc_sgd import DGCSGD
from horovod_compressors.tensorflow.horovod_call import is_keras_2_loss_scale, loss_scaled_by_caller

__all__ = ["DistributedOptimizer", "is_keras"]


def DistributedOptimizer(  # noqa: N802 - as Horovod's own
    optimizer: Any,
    compression: Compression,
    *,
    op: Any = hvd.Average,
    sparse_as_dense: bool = False,
    **options: Any,
) -> Any:
    """An optimizer that averages gradients over the ranks before it applies them.

    For Keras 2 it is the stock optimizer. The stock optimizer for Keras 3 never averages anything.
    For Keras 3 this is therefore a copy of ``optimizer`` that averages in ``apply``, which
    ``model.fit`` calls.

    With ``lr=scale`` in a spec the compression takes the learning rate of each step from the optimizer,
    and the loss scale from a ``LossScaleOptimizer``: inside this one for Keras 3, around it for
    Keras 2.

    Args:
        optimizer: an optimizer of Keras; its state, if any, is not copied. With mixed precision in
            Keras 3 the ``LossScaleOptimizer``, so that all ranks check the same averages.
        compression: averages the gradients over its process set.
        op: ``hvd.Average`` or ``hvd.Sum``.
        sparse_as_dense: whether to make gradients of embeddings dense.
        options: of the stock optimizer for Keras 2, such as ``backward_passes_per_step``. Keras 3
            has ``gradient_accumulation_steps`` of its optimizers instead, and takes only values that
            change nothing.

    Raises:
        ConfigError: options, or another ``op``, with an optimizer of Keras 3; a
            ``LossScaleOptimizer`` of Keras 2; or an optimizer with momentum and a spec that applies
            the momentum already.
    """
    if is_keras_2_loss_scale(optimizer):
        raise ConfigError(
            "DistributedOptimizer around a LossScaleOptimizer of Keras 2 does not work: use "
            "LossScaleOptimizer(DistributedOptimizer(optimizer, compression)), or the policy "
            "mixed_float16, whose compile() adds the LossScaleOptimizer"
        )
    _check_momentum(optimizer, compression)
    shared = {"sparse_as_dense": sparse_as_dense, "op": op}
    if not _is_keras_3(optimizer):
        import horovod.tensorflow.keras as hvd_keras

        distributed = hvd_keras.DistributedOptimizer(
            optimizer,
            compression=compression,
            process_set=compression.process_set,
            **shared,
            **options,
        )
        compression.read_rate(partial(_rate_of, distributed))
        return distributed
    refused = _effective(options)
    if refused:
        raise ConfigError(
            f"{', '.join(sorted(refused))} does not work with Keras 3; for "
            "backward_passes_per_step use gradient_accumulation_steps of the optimizer"
        )
    if op not in (hvd.Average, hvd.Sum):
        raise ConfigError(f"op is {op}; with Keras 3 it must be hvd.Average or hvd.Sum")
    cls = type(optimizer)
    # The name and module of the original, so that saved models load without Horovod.
    kind: Any = type(cls.__name__, (_Averaging, cls), {"__module__": cls.__module__})
    averaging = kind.from_config(optimizer.get_config())
    averaging._average = hvd._make_allreduce_grads_fn(
        f"Distributed{cls.__name__}",
        device_dense="",
        device_sparse="",
        compression=compression,
        gradient_predivide_factor=1.0,
        groups=None,
        process_set=compression.process_set,
        **shared,
    )
    compression.read_rate(partial(_rate_of, averaging))
    if isinstance(averaging, keras.optimizers.LossScaleOptimizer):
        compression.read_scale(partial(_scale_of, averaging))
    return averaging


def _rate_of(optimizer: Any) -> Any:
    """The learning rate of the coming step, of an optimizer of Keras 2 or 3."""
    rate = optimizer.learning_rate
    if not _is_keras_3(optimizer):
        # With a schedule, Keras 2's `learning_rate` is that of the last step.
        rate = getattr(optimizer, "_learning_rate", rate)
    return rate(optimizer.iterations) if callable(rate) else rate


def _scale_of(optimizer: Any) -> Any:
    """The loss scale of the present step, of a ``LossScaleOptimizer`` of Keras 3."""
    return optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale


def _effective(options: dict[str, Any]) -> list[str]:
    """The options of the stock optimizer that would change something."""
    same = {
        "backward_passes_per_step": 1,
        "gradient_predivide_factor": 1.0,
        "num_groups": 0,
        "groups": None,
    }
    if options.get("backward_passes_per_step", 1) == 1:
        options = {k: v for k, v in options.items() if k != "average_aggregated_gradients"}
    return [name for name, value in options.items() if name not in same or value != same[name]]


class _Averaging:
    """Mixin in front of a class of optimizers of Keras 3."""

    _average: Any
    _trainable_variables: Sequence[Any]

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """Average the gradients, and apply the averages.

        Raises:
            ConfigError: a LossScaleOptimizer around this optimizer is the caller.
        """
        if loss_scaled_by_caller(self):
            raise ConfigError(
                "LossScaleOptimizer around DistributedOptimizer skips the step of a rank whose own "
                "gradients overflow, while the other ranks wait for them: use "
                "DistributedOptimizer(LossScaleOptimizer(optimizer), compression), also with the "
                "policy mixed_float16, whose compile() adds a LossScaleOptimizer if there is none"
            )
        variables = trainable_variables or self._trainable_variables
        # `horovod_call` finds the variables by this name.
        rv = [v if isinstance(v, tf.Variable) else v.value for v in variables]
        averages = self._average(list(grads), rv)
        return super().apply(averages, trainable_variables)  # type: ignore[misc]


def is_keras(optimizer: Any) -> bool:
    """Whether ``optimizer`` is an optimizer of Keras 2 or 3."""
    return _is_keras_3(optimizer) or isinstance(optimizer, tf.keras.optimizers.Optimizer)


def _is_keras_3(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.Optimizer)


def _check_momentum(optimizer: Any, compression: Compression) -> None:
    """Refuse an optimizer if the compression applies its momentum, too, or neither of them applies it."""
    stage = compression.config.own_momentum
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    config = optimizer.get_config()
    if isinstance(optimizer, DGCSGD):
        compression.config.check_dgc_sgd(config, "SGD")
        return
    if stage is None:
        return
    for key in ("momentum", "beta_1"):
        if config.get(key):
            raise ConfigError(
                f"{type(optimizer).__name__} has {key}={config[key]}, and '{stage.name}' applies "
                "the momentum already: use an optimizer without momentum, such as SGD(lr)"
            )
