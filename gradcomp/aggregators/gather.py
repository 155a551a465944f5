"""All-gather of frames, for codecs whose payloads cannot be added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradcomp import _core
from gradcomp.arrays import ByteArray, FloatArray
from gradcomp.batch import ToDecode, ToEncode, decode_batch_add, encode_batch
from gradcomp.codec import Codec
from gradcomp.errors import WireError
from gradcomp.memory import Memory
from gradcomp.rounds import AllGather, BucketRound, Round, TensorKey
from gradcomp.wire import split_frames

__all__ = ["Gather", "Member", "gather_bucket", "rank_seed"]


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
        self.codec = codec
        self.memory = memory
        self.seed = rank_seed(seed, rank)

    def round(self, grad: FloatArray, key: TensorKey, step: int) -> Round:
        """See `Aggregator.round`."""
        (average,) = yield from gather_bucket(key.name, [Member(self, grad, key, step)])
        return average


class Member(NamedTuple):
    """One tensor of a bucket: what `Gather.round` would be given."""

    gather: Gather
    grad: FloatArray
    key: TensorKey
    step: int


def gather_bucket(name: str, members: Sequence[Member]) -> BucketRound:
    """Average the tensors of a bucket in one all-gather, the same as one by one.

    Args:
        name: of the request; the same on every rank, as are the members' order and keys.

    Returns:
        A generator that returns the averages in the members' order, flat float32.
    """
    tensors = []
    for gather, grad, key, step in members:
        source = gather.memory.source(grad, key)
        seeds = (gather.seed, step, key.tensor_id)
        tensors.append(ToEncode(gather.codec, source.grad, *seeds, *source[1:]))
    data, _ = encode_batch(tensors)
    for gather, _, key, _ in members:
        gather.memory.sent(key)
    replies: list[ByteArray] = yield AllGather(name, data, len(members))
    of_ranks = [_split(rank, reply, members) for rank, reply in enumerate(replies)]
    averages = [np.zeros(member.key.numel, np.float32) for member in members]
    decode_batch_add(
        [
            ToDecode(member.key.name, member.gather.codec, frames, average)
            for member, average, *frames in zip(members, averages, *of_ranks, strict=True)
        ],
        1.0 / len(replies),
    )
    return averages


def _split(rank: int, reply: ByteArray, members: Sequence[Member]) -> list[ByteArray]:
    """A rank's frames."""
    try:
        return split_frames(reply, len(members))
    except WireError as error:
        names = ", ".join(f"'{member.key.name}'" for member in members)
        raise WireError(f"the frames of rank {rank} for {names}: {error}") from error
