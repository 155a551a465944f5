"""All-reduce of payloads, for summable codecs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.batch_items import EncodeItem, PeerItem
from gradcomp.codec.codec import Codec
from gradcomp.codec.devices import peer_device_of
from gradcomp.exchange.memory import Memory
from gradcomp.exchange.patterns.base import Aggregator, BucketAggregator, Member
from gradcomp.exchange.rounds import AllReduce, BucketRound, Round, TensorKey

__all__ = ["BucketedReduce", "NonlinearReduce", "Reduce"]


class Reduce(Aggregator):
    """Payloads are averaged on the wire in their own dtype and decoded once.

    Engines divide float16 before the sum, so that it does not overflow; see `AllReduce`. What the sum
    itself rounds is in no rank's memory: none knows the exact sum.
    """

    linear = True

    def __init__(self, codec: Codec, memory: Memory, seed: int) -> None:
        self._codec = codec
        self._memory = memory
        self._seed = seed

    def round(self, grad: FloatArray, key: TensorKey, step: int, out: FloatArray) -> Round:
        """See `Aggregator.round`."""
        codec = self._codec
        seed, tensor_id = self._seed, key.tensor_id
        item = self._memory.source(grad, key).to_encode(codec, seed, step, tensor_id)
        payload = _payload(item)
        self._memory.sent(key)
        average = yield AllReduce(key.name, payload, overwrite=True)
        random = {"seed": seed, "step": step, "tensor_id": tensor_id}
        return codec.decode_payload(average, key.numel, out=out, **random)


class NonlinearReduce(Reduce):
    """As `Reduce`, for nonlinear codecs: the decode of a sum is not the sum of the decodes.

    The decode of this rank's own payload says nothing about the decode of the average. So every
    rank's memory subtracts the average, and the unsent part stays in the mean of the memories.
    """

    linear = False

    def round(self, grad: FloatArray, key: TensorKey, step: int, out: FloatArray) -> Round:
        """See `Aggregator.round`."""
        codec = self._codec
        seed, tensor_id = self._seed, key.tensor_id
        corrected = self._memory.compensate(grad, key)
        payload = codec.encode_payload(corrected, seed=seed, step=step, tensor_id=tensor_id)
        mean = yield AllReduce(key.name, payload, overwrite=True)
        random = {"seed": seed, "step": step, "tensor_id": tensor_id}
        average = codec.decode_payload(mean, key.numel, out=out, **random)
        self._memory.update(key, average)
        return average


class BucketedReduce(BucketAggregator):
    """As `Reduce`, for float16 where gradients may be on a `PeerDevice`: a bucket is one request."""

    on_peer_devices = True

    def __init__(self, codec: Codec, memory: Memory, seed: int) -> None:
        self.bucket = BucketedReduce
        self.codec = codec
        self._memory = memory
        self._seed = seed

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`; averages equal those of `Reduce`."""
        grads = [EncodeItem(_of(member).codec, member.grad) for member in members]
        device = peer_device_of(grads)
        if device is None:
            return (yield from _reduce(name, [member.on_host() for member in members]))
        messages = device.begin_messages(name, [_encoded(members)])
        _sent(members)
        numbers: Any = messages.numbers
        average = yield AllReduce(name, numbers)
        to_decode = [
            PeerItem(tensor.codec, member.out, [0])
            for tensor, member in zip(grads, members, strict=True)
        ]
        device.decode_numbers(messages, to_decode, average)
        return [member.out for member in members]

    def to_encode(self, grad: FloatArray, key: TensorKey, step: int) -> EncodeItem:
        """The codec call for a tensor."""
        source = self._memory.source(grad, key)
        return source.to_encode(self.codec, self._seed, step, key.tensor_id)

    def sent(self, key: TensorKey) -> None:
        """Report that a tensor has been encoded."""
        self._memory.sent(key)


def _reduce(name: str, members: Sequence[Member]) -> BucketRound:
    payloads = [_payload(tensor) for tensor in _encoded(members)]
    _sent(members)
    average = yield AllReduce(name, np.concatenate(payloads), overwrite=True)
    ends = np.cumsum([payload.size for payload in payloads])
    return [
        _of(member).codec.decode_payload(part, member.key.numel, out=member.out)
        for member, part in zip(members, np.split(average, ends[:-1]), strict=True)
    ]


def _encoded(members: Sequence[Member]) -> list[EncodeItem]:
    return [_of(member).to_encode(member.grad, member.key, member.step) for member in members]


def _sent(members: Sequence[Member]) -> None:
    for member in members:
        _of(member).sent(member.key)


def _of(member: Member) -> BucketedReduce:
    assert isinstance(member.aggregator, BucketedReduce)  # ensured by `bucket`
    return member.aggregator


def _payload(item: EncodeItem) -> npt.NDArray[Any]:
    """The bare payload of a codec call."""
    codec, random = item.codec, {"seed": item.seed, "step": item.step, "tensor_id": item.tensor_id}
    if item.residual is None:
        return codec.encode_payload(item.grad, **random)
    return codec.encode_payload_with_residual(
        item.grad, item.residual, item.beta, item.gamma, correction=item.correction, **random
    )
