"""All-reduce of payloads, for summable codecs."""

from __future__ import annotations

import numpy as np

from gradcomp.arrays import FloatArray
from gradcomp.codec import Codec
from gradcomp.memory import Memory
from gradcomp.rounds import AllReduce, Round, TensorKey

__all__ = ["Reduce"]


class Reduce:
    """Payloads are averaged on the wire in their own dtype and decoded once.

    A float16 sum of many ranks may overflow to Inf although no rank's payload does: the Inf reaches
    the result on all ranks, where loss scaling sees it. Engines that can divide before the sum
    (Horovod: ``gradient_predivide_factor``) avoid it.

    The memory takes note of what this rank sent. Where decoding is not linear, the average of what
    ranks sent says nothing of what they decode; then it takes note of the average, on every rank,
    so that what is not sent stays in the mean of the memories.
    """

    def __init__(self, codec: Codec, memory: Memory, seed: int) -> None:
        self._codec = codec
        self._memory = memory
        self._seed = seed
        self.linear = "nonlinear" not in codec.caps

    def round(self, grad: FloatArray, key: TensorKey, step: int) -> Round:
        """See `Aggregator.round`."""
        codec = self._codec
        seed, tensor_id = self._seed, key.tensor_id
        corrected = self._memory.compensate(grad, key)
        payload = codec.encode_payload(corrected, seed=seed, step=step, tensor_id=tensor_id)

        def subtract_sent(values: FloatArray) -> None:
            codec.decode_payload_add(
                payload, values, -1.0, seed=seed, step=step, tensor_id=tensor_id
            )

        finite = "finite" in codec.caps
        if self.linear:
            self._memory.update(key, subtract_sent, finite=finite)
        mean = yield AllReduce(key.name, payload)
        average = codec.decode_payload(mean, key.numel, seed=seed, step=step, tensor_id=tensor_id)
        if not self.linear:
            self._memory.update(key, lambda values: _subtract(values, average), finite=finite)
        return average


def _subtract(values: FloatArray, average: FloatArray) -> None:
    """values -= average, in place."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(values, average, out=values)
