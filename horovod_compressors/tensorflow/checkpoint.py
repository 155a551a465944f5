"""Compressor states in ``tf.train.Checkpoint``."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import tensorflow as tf

from gradcomp.adapter_api import STATE_KINDS
from gradcomp.errors import StateError
from horovod_compressors.tensorflow.compression import Compression

__all__ = ["CompressionState"]


class CompressionState(tf.train.experimental.PythonState):  # type: ignore[misc]
    """Makes a `Compression` part of a ``tf.train.Checkpoint``.

    Every rank has a state of its own, so every rank must save, to a path of its own, and restore
    from there::

        checkpoint = tf.train.Checkpoint(model=model, compression=CompressionState(compression))
        checkpoint.save(f"checkpoints/rank{hvd.rank()}/step")
    """

    def __init__(self, compression: Compression) -> None:
        super().__init__()
        self._compression = compression

    def serialize(self) -> bytes:
        """The state as bytes: numpy's npz, with JSON for all that is no array."""
        state = self._compression.state_dict()
        arrays = {
            f"{kind}/{name}": value for kind in STATE_KINDS for name, value in state[kind].items()
        }
        rest = {key: value for key, value in state.items() if key not in STATE_KINDS}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **{"": np.array(json.dumps(rest))}, **arrays)
        return file.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Continue from a result of `serialize`.

        Raises:
            StateError: the bytes are no state, or it does not fit.
        """
        try:
            with np.load(io.BytesIO(string_value), allow_pickle=False) as file:
                state: dict[str, Any] = json.loads(file[""].item())
                for kind in STATE_KINDS:
                    state[kind] = {}
                for key in file.files:
                    if key:
                        kind, name = key.split("/", 1)
                        state[kind][name] = file[key]
        except (ValueError, KeyError, OSError) as error:
            raise StateError(f"not a compressor state of a checkpoint: {error}") from error
        self._compression.load_state_dict(state)
