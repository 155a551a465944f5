"""All-reduce of payloads, for summable codecs."""

from __future__ import annotations

from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.codec import Codec
from gradcomp.exchange.memory import Memory
from gradcomp.exchange.patterns.base import Aggregator
from gradcomp.exchange.rounds import AllReduce, Round, TensorKey

__all__ = ["NonlinearReduce", "Reduce"]


class Reduce(Aggregator):
    """Payloads are averaged on the wire in their own dtype and decoded once.

    A float16 sum of many ranks may overflow to Inf although no rank's payload does: the Inf reaches
    the result on all ranks, where loss scaling sees it. Engines that can divide before the sum
    (Horovod: ``gradient_predivide_factor``) avoid it.
    """

    linear = True

    def __init__(self, codec: Codec, memory: Memory, seed: int) -> None:
        self._codec = codec
        self._memory = memory
        self._seed = seed

    def round(self, grad: FloatArray, key: TensorKey, step: int) -> Round:
        """See `Aggregator.round`."""
        codec = self._codec
        seed, tensor_id = self._seed, key.tensor_id
        flat, residual, beta, gamma, correction = self._memory.source(grad, key)
        if residual is None:
            payload = codec.encode_payload(flat, seed=seed, step=step, tensor_id=tensor_id)
        else:
            payload = codec.encode_payload_with_residual(
                flat,
                residual,
                beta,
                gamma,
                correction=correction,
                seed=seed,
                step=step,
                tensor_id=tensor_id,
            )
        self._memory.sent(key)
        average = yield AllReduce(key.name, payload)
        return codec.decode_payload(average, key.numel, seed=seed, step=step, tensor_id=tensor_id)


class NonlinearReduce(Reduce):
    """As `Reduce`, for nonlinear codecs: the decode of a sum is not the sum of the decodes.

    The decode of this rank's own payload says nothing about the decode of the average. So every
    rank's memory subtracts the average, and the unsent part stays in the mean of the memories.
    """

    linear = False

    def round(self, grad: FloatArray, key: TensorKey, step: int) -> Round:
        """See `Aggregator.round`."""
        codec = self._codec
        seed, tensor_id = self._seed, key.tensor_id
        corrected = self._memory.compensate(grad, key)
        payload = codec.encode_payload(corrected, seed=seed, step=step, tensor_id=tensor_id)
        mean = yield AllReduce(key.name, payload)
        average = codec.decode_payload(mean, key.numel, seed=seed, step=step, tensor_id=tensor_id)
        self._memory.update(key, average)
        return average
