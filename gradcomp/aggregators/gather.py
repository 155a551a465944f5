"""All-gather of frames, for codecs whose payloads cannot be added."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradcomp import _core
from gradcomp.aggregators.base import BucketAggregator, Member
from gradcomp.arrays import ByteArray
from gradcomp.batch import ToDecode, ToEncode, decode_batch_add, encode_batch
from gradcomp.codec import Codec
from gradcomp.errors import WireError
from gradcomp.memory import Arrays, Memory, Source
from gradcomp.rounds import AllGather, BucketRound, TensorKey
from gradcomp.wire import split_frames

__all__ = ["Gather", "frames_of_rank", "rank_seed"]


def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank's own random numbers, for a job seeded with ``seed``."""
    return _core.derive_stream(seed, rank, 0)


class Gather(BucketAggregator):
    """Every rank decodes every rank's frame and adds them in rank order, in float32.

    The volume that a rank receives grows with the number of ranks. Each rank draws random numbers
    of its own: rounding noise and rotations that all ranks share would not average out. Frames
    carry what decoding needs.
    """

    def __init__(
        self, codec: Codec, memory: Memory, seed: int, rank: int, carried: Arrays | None = None
    ) -> None:
        # Frames of different specs may share a bucket, but for codecs that look at all of it.
        self.bucket = self if "shares" in codec.caps else Gather
        self.codec = codec
        self.memory = memory
        self.seed = rank_seed(seed, rank)
        self._carried = {} if carried is None else carried

    def to_encode(self, source: Source, key: TensorKey, step: int) -> ToEncode:
        """The codec call for a tensor."""
        item = source.to_encode(self.codec, self.seed, step, key.tensor_id)
        carried = None
        if self.codec.carried:
            carried = self._carried.get(key.name)
            if carried is None or carried.size != self.codec.carried:
                carried = self._carried[key.name] = np.zeros(self.codec.carried, np.float32)
        # Codecs may look at the rows and columns of a matrix.
        return item._replace(grad=item.grad.reshape(key.shape), carried=carried)

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`; the averages are those of one all-gather each."""
        return _gather(name, members)


def _gather(name: str, members: Sequence[Member]) -> BucketRound:
    tensors = []
    gathers = []
    for gather, grad, key, step, _ in members:
        assert isinstance(gather, Gather)  # as the bucket says
        gathers.append(gather)
        tensors.append(gather.to_encode(gather.memory.source(grad, key), key, step))
    data, _ = encode_batch(tensors)
    for gather, member in zip(gathers, members, strict=True):
        gather.memory.sent(member.key)
    replies: list[ByteArray] = yield AllGather(name, data, len(members))
    names = [member.key.name for member in members]
    of_ranks = [frames_of_rank(rank, reply, names) for rank, reply in enumerate(replies)]
    averages = [member.zeros() for member in members]
    decode_batch_add(
        [
            ToDecode(member.key.name, gather.codec, frames, average)
            for gather, member, average, *frames in zip(
                gathers, members, averages, *of_ranks, strict=True
            )
        ],
        1.0 / len(replies),
    )
    return averages


def frames_of_rank(rank: int, data: ByteArray, names: Sequence[str]) -> list[ByteArray]:
    """A rank's frames, one for each of the tensors named.

    Raises:
        WireError: naming the rank and the tensors.
    """
    try:
        return split_frames(data, len(names))
    except WireError as error:
        listed = ", ".join(f"'{name}'" for name in names)
        raise WireError(f"the frames of rank {rank} for {listed}: {error}") from error
