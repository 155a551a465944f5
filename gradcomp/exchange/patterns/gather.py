"""All-gather of frames, for codecs with payloads that cannot be added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, FloatArray, room
from gradcomp.codec.batch import decode_batch_add, launch_batch
from gradcomp.codec.batch_items import DecodeItem, EncodeItem, PeerItem
from gradcomp.codec.codec import Codec
from gradcomp.codec.devices import HOST, PeerDevice, peer_device_of
from gradcomp.codec.frame import split_frames
from gradcomp.errors import WireError
from gradcomp.exchange.averaging import MEAN, Averaging
from gradcomp.exchange.memory import Arrays, Memory, MemoryState, Source
from gradcomp.exchange.patterns.base import BucketAggregator, Member
from gradcomp.exchange.rounds import AllGather, BucketRound, Ready, TensorKey

__all__ = ["Gather", "frames_of_rank", "rank_seed"]


@lru_cache(maxsize=4096)
def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank's own random numbers, for a job seeded with ``seed``."""
    return _core.derive_stream(seed, rank, 0)


class Gather(BucketAggregator):
    """Every rank decodes every rank's frame and adds them in rank order, in float32.

    With ``averaging`` their average is another one than the mean over the ranks.

    The volume that a rank receives grows with the number of ranks. Each rank draws its own
    random numbers: rounding noise and rotations that all ranks share would not average out. Frames
    carry the stream of their random numbers, so every rank can decode them.
    """

    def __init__(
        self,
        codec: Codec,
        memory: Memory,
        seed: int,
        rank: int,
        state: MemoryState | None = None,
        averaging: Averaging = MEAN,
    ) -> None:
        # Frames of different specs may share a bucket, except for codecs that encode a whole bucket.
        self.bucket = self if "whole_bucket" in codec.caps else Gather
        self.codec = codec
        self.memory = memory
        self._seed_of_job = seed
        self._rank = rank
        self.seed = rank_seed(seed, rank)
        self.averaging = averaging
        self._learns = "learns" in codec.caps
        self._seeded = "seeded" in codec.caps
        # With `whole_bucket` all tensors have to be in one place, and a device may not take each of them.
        self.on_devices = averaging == MEAN and "whole_bucket" not in codec.caps
        state = {} if state is None else state
        self._carried = state.setdefault("carried", {})
        self._bases = state.setdefault("basis", {})

    def to_encode(self, source: Source, key: TensorKey, step: int) -> EncodeItem:
        """The codec call for a tensor."""
        grad, residual, beta, gamma, correction = source
        codec = self.codec
        keeps = codec.decodes_slowly and self.averaging == MEAN and residual is not None
        return EncodeItem(
            codec,
            grad.reshape(key.shape),  # codecs may look at the rows and columns of a matrix
            self.seed,
            step,
            key.tensor_id,
            residual,
            beta,
            gamma,
            correction,
            _kept(self._carried, key, codec.carried) if codec.carried else None,
            self.basis(key) if self._learns else None,
            room(key.numel) if keeps else None,
        )

    def known(self, tensor: EncodeItem) -> tuple[int, FloatArray] | None:
        """`DecodeItem.known` of a tensor that this rank has encoded."""
        return None if tensor.decoded is None else (self._rank, tensor.decoded)

    def streams(self, tensor_id: int, step: int, ranks: Iterable[int]) -> list[int]:
        """The keys of some ranks' random numbers for a tensor; zeros if the codec draws none."""
        if not self._seeded:
            return [0 for _ in ranks]
        seeds = [rank_seed(self._seed_of_job, rank) for rank in ranks]
        return [_core.derive_stream(seed, step, tensor_id) for seed in seeds]

    def basis(self, key: TensorKey) -> FloatArray | None:
        """The codec's state from earlier averages, flat; None if the codec does not learn."""
        if not self._learns:  # saves a call of the core for most codecs
            return None
        return _kept(self._bases, key, self.codec.basis_size(key.shape))

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`; averages equal those of one all-gather per tensor."""
        return _gather(name, members)


def _kept(arrays: Arrays, key: TensorKey, size: int) -> FloatArray | None:
    """A tensor's array; zeros if it has none of this size yet; None for size 0."""
    if size == 0:
        return None
    array = arrays.get(key.name)
    if array is None or array.size != size:
        array = arrays[key.name] = np.zeros(size, np.float32)
    return array


def _gather(name: str, members: Sequence[Member]) -> BucketRound:
    tensors = []
    gathers = []
    for gather, grad, key, step, _ in members:
        assert isinstance(gather, Gather)  # ensured by `bucket`
        gathers.append(gather)
        tensors.append(gather.to_encode(gather.memory.source(grad, key), key, step))
    device = peer_device_of(tensors)
    if device is not None:
        return (yield from _peer_gather(name, members, tensors, device))
    launched = launch_batch(tensors)
    data, _ = HOST.encode(tensors)() if launched is None else (yield Ready(name, launched))
    for gather, member in zip(gathers, members, strict=True):
        gather.memory.sent(member.key)
    replies: list[ByteArray] = yield AllGather(name, data, len(members))
    names = [member.key.name for member in members]
    of_ranks = [frames_of_rank(rank, reply, names) for rank, reply in enumerate(replies)]
    averages = [member.out for member in members]
    received = [
        DecodeItem(
            member.key.name,
            gather.codec,
            frames,
            member.out,
            tensor.basis,
            over_senders=gather.averaging.average == "senders",
            clips=gather.averaging.clip == "median_norm",
            replaces=True,
            known=gather.known(tensor),
        )
        for gather, member, tensor, *frames in zip(
            gathers, members, tensors, *of_ranks, strict=True
        )
    ]
    decode_batch_add(received, 1.0 / len(replies))
    for tensor, member, average in zip(tensors, members, averages, strict=True):
        if tensor.basis is not None:
            tensor.codec.learn(average, member.key.shape, tensor.basis)
    return averages


def _peer_gather(
    name: str, members: Sequence[Member], tensors: Sequence[EncodeItem], device: PeerDevice
) -> BucketRound:
    """As `_gather`, from device to device: what travels never comes to the host."""
    messages: Any = device.begin_messages(name, [tensors])
    received = []
    for gather, _, key, _, _ in members:
        assert isinstance(gather, Gather)  # ensured by `bucket`
        gather.memory.sent(key)
    replies: list[ByteArray] = yield AllGather(name, messages, len(members))
    ranks = range(len(replies))
    for gather, _, key, step, out in members:
        assert isinstance(gather, Gather)
        streams = gather.streams(key.tensor_id, step, ranks)
        received.append(PeerItem(gather.codec, out, streams))
    device.add_messages(messages, 0, received, replies, 1.0 / len(replies))
    return [member.out for member in members]


def frames_of_rank(rank: int, data: ByteArray, names: Sequence[str]) -> list[ByteArray]:
    """Cut a rank's frames apart, one for each of the tensors named.

    Raises:
        WireError: the data are not exactly these frames; the message names the rank and tensors.
    """
    try:
        return split_frames(data, len(names))
    except WireError as error:
        listed = ", ".join(f"'{name}'" for name in names)
        raise WireError(f"the frames of rank {rank} for {listed}: {error}") from error
