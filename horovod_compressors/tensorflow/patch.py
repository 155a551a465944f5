"""Compression in unchanged scripts for TensorFlow."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.tensorflow as hvd

from gradcomp.adapter_api import Unedited
from gradcomp.errors import ConfigError
from horovod_compressors.tensorflow.compression import Compression
from horovod_compressors.tensorflow.elastic import ElasticState
from horovod_compressors.tensorflow.keras import DistributedOptimizer, is_keras
from horovod_compressors.tensorflow.outer import OuterStep
from horovod_compressors.tensorflow.unedited_outer import with_outer_steps

__all__ = ["patch"]

# One compression for each process set, because scripts make a tape in every step.
_compressions: dict[int, Compression] = {}
_reported: set[int] = set()

# Arguments for Horovod's optimizers only.
_OF_HOROVOD = ("name", "device_dense", "device_sparse")


def patch(module: Any, run: Unedited) -> None:
    """Replace the functions of Horovod's module that average gradients, and ``KerasState`` of elastic jobs.

    Args:
        module: ``horovod.tensorflow`` or ``horovod.tensorflow.keras``.
        run: of the script.
    """
    for name in ("DistributedGradientTape", "DistributedOptimizer"):
        stock = getattr(module, name, None)
        if stock is not None:
            setattr(module, name, _compressing(stock, run))
    # Not TensorFlowKerasState, on which ours is built.
    if run.every is None and hasattr(module.elastic, "KerasState"):
        module.elastic.KerasState = _holding(run)


def _compression_of(process_set: Any, run: Unedited) -> Compression:
    number = process_set.process_set_id
    if number not in _compressions:
        _compressions[number] = Compression(run.config, process_set=process_set)
    return _compressions[number]


def _holding(run: Unedited) -> type[ElasticState]:
    """A state that replaces Horovod's for Keras, and holds the compression, too."""

    class KerasState(ElasticState):
        def __init__(self, model: Any, optimizer: Any = None, **others: Any) -> None:
            compression = _compression_of(hvd.global_process_set, run)
            super().__init__(model, optimizer, gradcomp_compression=compression, **others)

    return KerasState


def _compressing(stock: Callable[..., Any], run: Unedited) -> Callable[..., Any]:
    signature = inspect.signature(stock)

    def compressing(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        before = call.arguments.get("compression")
        if isinstance(before, Compression):  # Horovod's own functions call each other
            return stock(*args, **kwargs)
        process_set = call.arguments.get("process_set", hvd.global_process_set)
        optimizer = call.arguments.get("optimizer")
        replaced = None if before is hvd.Compression.none else before
        every = run.every
        if every is not None:
            if not is_keras(optimizer):
                raise ConfigError(
                    f"--outer does not reach hvd.{stock.__name__}, as it does not see the steps of a "
                    "loop: use horovod_compressors.tensorflow.OuterStep in the script"
                )
            run.replaced(f"model.fit with hvd.{stock.__name__}", replaced)
            make = partial(OuterStep, run.config, every=every, process_set=process_set)
            return with_outer_steps(optimizer, make)
        compression = _compression_of(process_set, run)
        if process_set.process_set_id not in _reported:
            _reported.add(process_set.process_set_id)
            run.replaced(f"hvd.{stock.__name__}", replaced)
        call.arguments["compression"] = compression
        if not is_keras(optimizer):
            return stock(*call.args, **call.kwargs)
        options = {
            name: value
            for name, value in call.arguments.items()
            if name not in ("optimizer", "compression", "process_set", *_OF_HOROVOD)
            and value != signature.parameters[name].default
        }
        return DistributedOptimizer(optimizer, compression, **options)

    return compressing
