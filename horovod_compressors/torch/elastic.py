"""The compression of an elastic job as a part of ``hvd.elastic.TorchState``.

::

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, compression=compression)
"""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd

from horovod_compressors.torch.compression import Compression

__all__ = ["register", "with_compressions"]


class _CompressionHandler(hvd.elastic.state.StateHandler):  # type: ignore[misc]
    """Saves a rank's compression with each commit, and takes it back after a failure."""

    def __init__(self, compression: Compression) -> None:
        super().__init__(compression)
        self.save()

    def save(self) -> None:
        """See Horovod."""
        self._saved = self.value.snapshot()

    def restore(self) -> None:
        """See Horovod."""
        self.value.roll_back(self._saved)

    def sync(self) -> None:
        """Nothing to do: the ranks agree with their next gradients, also after resets without sync."""


def register() -> None:
    """Let ``hvd.elastic.TorchState`` handle compressions."""
    states = hvd.elastic.state
    handlers = states.get_handler_registry()
    if not any(kind is Compression for kind, _ in handlers):
        states.set_handler_registry([(Compression, _CompressionHandler), *handlers])


def with_compressions(stock: type[Any]) -> type[Any]:
    """``hvd.elastic.TorchState`` that holds the compressions of its optimizers, too."""

    class TorchState(stock):  # type: ignore[misc]
        def __init__(self, model: Any = None, optimizer: Any = None, **others: Any) -> None:
            for number, value in enumerate((optimizer, *others.values())):
                compression = getattr(value, "_compression", None)
                if isinstance(compression, Compression):
                    others[f"gradcomp_compression_{number}"] = compression
            super().__init__(model, optimizer, **others)

    TorchState.__doc__ = stock.__doc__
    return TorchState
