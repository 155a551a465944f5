"""Compressor states in ``tf.train.Checkpoint``."""

from __future__ import annotations

import tensorflow as tf

from gradcomp.adapter_api import pack_state, unpack_state
from horovod_compressors.tensorflow.compression import Compression

__all__ = ["CompressionState"]


class CompressionState(tf.train.experimental.PythonState):  # type: ignore[misc]
    """Makes a `Compression` part of a ``tf.train.Checkpoint``.

    Every rank has its own state, so every rank must save to its own path, and restore from there::

        checkpoint = tf.train.Checkpoint(model=model, compression=CompressionState(compression))
        checkpoint.save(f"checkpoints/rank{hvd.rank()}/step")
    """

    def __init__(self, compression: Compression) -> None:
        super().__init__()
        self._compression = compression

    def serialize(self) -> bytes:
        """The state as bytes, with a checksum; see `gradcomp.runtime.state.state_file`."""
        return pack_state(self._compression.state_dict())

    def deserialize(self, string_value: bytes) -> None:
        """Continue from a result of `serialize`.

        Raises:
            StateError: the bytes are not a state, or it does not fit.
        """
        self._compression.load_state_dict(unpack_state(string_value))
