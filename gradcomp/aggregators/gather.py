"""All-gather of frames, for codecs whose payloads cannot be added."""

from __future__ import annotations

import numpy as np

from gradcomp import _core
from gradcomp.arrays import ByteArray, FloatArray
from gradcomp.codec import Codec
from gradcomp.errors import WireError
from gradcomp.memory import Memory
from gradcomp.rounds import AllGather, Round, TensorKey

__all__ = ["Gather", "rank_seed"]


def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank's own random numbers, for a job seeded with ``seed``."""
    return _core.derive_stream(seed, rank, 0)


class Gather:
    """Every rank decodes every rank's frame and adds them in rank order, in float32.

    The volume that a rank receives grows with the number of ranks. Each rank draws random numbers
    of its own: rounding noise and rotations that all ranks share would not average out. Frames
    carry what decoding needs.
    """

    linear = False

    def __init__(self, codec: Codec, memory: Memory, seed: int, rank: int) -> None:
        self._codec = codec
        self._memory = memory
        self._seed = rank_seed(seed, rank)

    def round(self, grad: FloatArray, key: TensorKey, step: int) -> Round:
        """See `Aggregator.round`."""
        codec = self._codec
        corrected = self._memory.compensate(grad, key)
        frame = codec.encode(corrected, seed=self._seed, step=step, tensor_id=key.tensor_id)
        self._memory.update(
            key,
            lambda values: codec.decode_add(frame, values, -1.0),
            finite="finite" in codec.caps,
        )
        frames: list[ByteArray] = yield AllGather(key.name, frame)
        average = np.zeros(key.numel, np.float32)
        for rank, received in enumerate(frames):
            try:
                codec.decode_add(received, average, 1.0 / len(frames))
            except WireError as error:
                raise WireError(f"the frame of rank {rank} for '{key.name}': {error}") from error
        return average
