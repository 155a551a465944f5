"""Scatter-reduce-allgather of frames: a volume that does not grow with the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.codec.codec import Codec
from gradcomp.codec.items import ToEncode
from gradcomp.exchange.memory import Memory
from gradcomp.exchange.patterns.base import BucketAggregator, Context, Member
from gradcomp.exchange.patterns.chunks import (
    Chunk,
    Piece,
    cut,
    encode_apart,
    encode_pieces,
    scatter_reduce_allgather,
)
from gradcomp.exchange.patterns.gather import Gather
from gradcomp.exchange.rounds import BucketRound

__all__ = ["MIN_CHUNK", "Sra"]

MIN_CHUNK = 256
"""Minimum elements per rank. Smaller buckets are gathered: frame headers would outweigh the data."""

_SCATTER, _GATHER = 0, 1


class Sra(BucketAggregator):
    """Each rank averages one chunk of the bucket and encodes the average for all ranks.

    It decodes all ranks' frames of its chunk and adds them in rank order, in float32. Every rank
    decodes the same frames of all chunks.

    A rank sends and receives about two payloads, however many ranks there are; `Gather` receives
    one payload from each rank. The price is a second loss, when the average is encoded. The chunk's
    owner adds world_size times this second loss to its residual. So the mean of all residuals is
    again exactly the part that the averages lack.

    Codecs see pieces of tensors: a ``k`` counts within a piece, and a piece has its own scale. Codecs
    that ``share`` choose within a chunk: each owner's part of the bytes is as large as its part of
    the elements, in both phases, on all ranks. Their chunks have whole rows, where these are small.
    """

    def __init__(self, codec: Codec, memory: Memory, context: Context) -> None:
        self._shares = "shares" in codec.caps
        self.bucket = self if self._shares else Sra
        self.codec = codec
        self.memory = memory
        self.gather = Gather(codec, memory, context.seed, context.rank)
        self._rank = context.rank
        self._world_size = context.world_size

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`; the bucket as a whole is cut into chunks."""
        aggregators = [_checked(member) for member in members]
        numel = sum(member.key.numel for member in members)
        if self._world_size == 1 or numel < MIN_CHUNK * self._world_size:
            gathers = [
                member._replace(aggregator=aggregator.gather)
                for member, aggregator in zip(members, aggregators, strict=True)
            ]
            return (yield from self.gather.bucket_round(name, gathers))

        keys = [member.key for member in members]
        chunks = cut(keys, self._world_size, whole_rows=self._shares)
        sources = [
            aggregator.memory.source(member.grad, member.key)
            for aggregator, member in zip(aggregators, members, strict=True)
        ]
        seed = self.gather.seed
        of_chunks = [
            [
                self._shaped(
                    piece,
                    sources[piece.member]
                    .part(piece.begin, piece.end)
                    .to_encode(
                        aggregators[piece.member].codec,
                        seed,
                        members[piece.member].step,
                        piece.tensor_id(_SCATTER),
                    ),
                )
                for piece in chunk
            ]
            for chunk in chunks
        ]
        # One call for all, unless a chunk is a bucket of its own for the codec.
        groups = of_chunks if self._shares else [list(chain.from_iterable(of_chunks))]
        data = encode_apart(groups)
        for aggregator, member in zip(aggregators, members, strict=True):
            aggregator.memory.sent(member.key)

        def settle(chunk: Chunk, averages: list[FloatArray]) -> ByteArray:
            tensors = []
            for piece, average in zip(chunk, averages, strict=True):
                kept = sources[piece.member].residual is not None
                item = ToEncode(
                    aggregators[piece.member].codec,
                    average,
                    seed,
                    members[piece.member].step,
                    piece.tensor_id(_GATHER),
                    residual=np.zeros_like(average) if kept else None,
                    beta=0.0,
                )
                tensors.append(self._shaped(piece, item))
            frames, _ = encode_pieces(tensors)
            for piece, tensor in zip(chunk, tensors, strict=True):
                residual = sources[piece.member].residual
                if residual is not None and tensor.residual is not None:
                    own = residual[piece.begin : piece.end]
                    with np.errstate(over="ignore", invalid="ignore"):
                        own += np.float32(self._world_size) * tensor.residual
                    _core.zero_nonfinite(own)
            return frames

        codecs = [aggregator.codec for aggregator in aggregators]
        weight = 1.0 / self._world_size
        outputs = [member.out for member in members]
        return (
            yield from scatter_reduce_allgather(
                name, chunks, codecs, self._rank, data, weight, settle, outputs
            )
        )

    def _shaped(self, piece: Piece, item: ToEncode) -> ToEncode:
        """The codec call, with the matrix of the piece's rows for codecs that `share`."""
        return item._replace(grad=item.grad.reshape(piece.shape)) if self._shares else item


def _checked(member: Member) -> Sra:
    assert isinstance(member.aggregator, Sra)  # ensured by `bucket`
    return member.aggregator
