"""Compression in unchanged scripts for TensorFlow."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd

from gradcomp import Config
from horovod_compressors.tensorflow.compression import Compression
from horovod_compressors.tensorflow.keras import DistributedOptimizer, is_keras

__all__ = ["patch"]

# One compression for each process set, because scripts make a tape in every step.
_compressions: dict[int, Compression] = {}

# Arguments for Horovod's optimizers only.
_OF_HOROVOD = ("name", "device_dense", "device_sparse")


def patch(module: Any, config: Config, replaced: Callable[[str, Any], None]) -> None:
    """Replace the functions of Horovod's module that average gradients.

    Args:
        module: ``horovod.tensorflow`` or ``horovod.tensorflow.keras``.
        config: of the new compression.
        replaced: called with the name of each replaced function, and its former compression.
    """
    for name in ("DistributedGradientTape", "DistributedOptimizer"):
        stock = getattr(module, name, None)
        if stock is not None:
            setattr(module, name, _compressing(stock, config, replaced))


def _compressing(
    stock: Callable[..., Any], config: Config, replaced: Callable[[str, Any], None]
) -> Callable[..., Any]:
    signature = inspect.signature(stock)

    def compressing(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        before = call.arguments.get("compression")
        if isinstance(before, Compression):  # Horovod's own functions call each other
            return stock(*args, **kwargs)
        process_set = call.arguments.get("process_set", hvd.global_process_set)
        compression = _compressions.get(process_set.process_set_id)
        if compression is None:
            compression = Compression(config, process_set=process_set)
            _compressions[process_set.process_set_id] = compression
            replaced(f"hvd.{stock.__name__}", None if before is hvd.Compression.none else before)
        call.arguments["compression"] = compression
        optimizer = call.arguments.get("optimizer")
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
